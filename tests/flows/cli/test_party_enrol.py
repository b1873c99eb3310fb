"""Enrolment from the command line, as the hospitals' page walks through it."""

from typer.testing import CliRunner

from flows.cli.party.enrol import enrol


def said(*words, **options):
    done = CliRunner().invoke(enrol, [str(word) for word in words], **options)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_party_has_a_certificate_by_mail_and_another_when_that_runs_out(tmp_path):
    authority, own = tmp_path / "authority", tmp_path / "north" / "credentials"
    said("authority", authority)
    token = said("token", authority, "--party", "north=teacher").split()[-1]
    said("request", own, "--name", "north", "--role", "teacher", "--token", token)
    said("sign", authority, own / "request.json", "--days", "10")
    mail = authority / "tokens" / "north.enrolment.json"
    assert "credentials of north, a teacher" in said("install", own, mail, input=f"{token}\n")
    first = (own / "certificate.pem").read_bytes()
    assert f"Mail {mail} to north" in said("renew", authority, "--party", "north")
    assert "credentials of north, a teacher" in said("install", own, mail)
    assert (own / "certificate.pem").read_bytes() != first
