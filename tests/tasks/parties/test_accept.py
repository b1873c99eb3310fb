"""A party accepts a proposal: its data are checked, its folder is laid out, and what it signed cannot be changed."""

import json
import re
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from flows.cli import app
from tasks.config.params import validate
from tasks.parties.account import OwnAccount, begun
from tasks.parties.agreement import editions
from tasks.parties.agreement.accept import accept, candidate
from tasks.parties.agreement.acceptance import accepted_by
from tasks.parties.agreement.editions import begin, look_ahead
from tasks.parties.agreement.ledgers import Charged
from tasks.parties.agreement.proposal import read_proposal, write_proposal
from tasks.parties.agreement.terms_page import page
from tasks.parties.config import read_party
from tasks.parties.standing import account_standing
from tasks.parties.training import own_params
from terrine.collaboration.transport.credentials import CredentialError, create_authority, issue
from terrine.collaboration.transport.link import difference
from terrine.errors import BudgetError, InputError, LedgerError, SettingError


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return create_authority(tmp_path_factory.mktemp("authority"))


def records(path, count=120, names=("ill", "well"), groups=None):
    images = np.random.default_rng(0).integers(0, 256, (count, 1, 10, 12), np.uint8)
    more = {} if groups is None else {"groups": np.arange(count) % groups}
    np.savez(path, images=images, labels=np.arange(count) % len(names), class_names=names, **more)
    return path


@pytest.fixture
def enrolled(authority, tmp_path):
    """Make a party's folder with credentials in it."""

    def make(name, role="teacher"):
        issue(authority, tmp_path / name / "credentials", name, role)
        return tmp_path / name

    return make


@pytest.fixture
def other(proposal, tmp_path):
    """Write the same proposal with other terms."""

    def make(**changes):
        folder = tmp_path / "other"
        folder.mkdir()
        terms = proposal.terms.model_copy(update=changes)
        write_proposal(folder, terms, proposal.params, proposal.addresses, proposal.images, proposal.backbone)
        return read_proposal(folder)

    return make


def test_each_role_has_a_folder_with_all_that_it_needs_and_one_signature(proposal, enrolled, authority, tmp_path):
    data = records(tmp_path / "own.npz")
    for name, role in proposal.terms.roles().items():
        folder = enrolled(name, role)
        party = candidate(proposal, name, folder=folder, data=data if role == "teacher" else None)
        _, remarks = party.look()
        assert not remarks.refusals
        path = accept(party)
        config = read_party(folder / "party.yaml", role)
        assert config.own_credentials().name == name
        assert config.terms == proposal.terms
        assert (folder / "terms.txt").read_text().count(proposal.shown) == 1
        assert folder.stat().st_mode & 0o077 == 0
        shutil.copy(path, tmp_path / f"{name}.json")
        assert accept(party) == path
    assert read_party(tmp_path / "trust" / "party.yaml").ledger.epsilon == proposal.terms.epsilon
    found = accepted_by(tmp_path, tmp_path / "none", proposal.terms, (authority / "certificate.pem").read_bytes())
    assert found.keys() == proposal.terms.roles().keys()


@pytest.mark.parametrize(
    ("changes", "given", "sentence"),
    [
        ({}, {"names": ["fit", "ill"]}, r"^The classes .* are 'ill', 'well'\. 'fit' is none of them\. Name what is"),
        ({}, {"names": ["ill", "Well"]}, r"'ill', 'well'\. 'Well' differs from 'well' only in capitals\. Name"),
        ({"unit": "group"}, {}, "own.params.privacy.unit|do not say whose records are whose"),
        ({"version": "9.9"}, {}, "agreed on Terrine 9.9, and this is"),
        ({"query_shards": ["0" * 64] * 2}, {}, "is not the file that was agreed on"),
        ({"backbone": "0" * 64}, {}, "is not the file that was agreed on"),
    ],
)
def test_data_that_do_not_go_with_the_terms_are_refused(changes, given, sentence, other, tmp_path):
    party = candidate(other(**changes), "north", folder=tmp_path, data=records(tmp_path / "own.npz", **given))
    with pytest.raises((InputError, SettingError), match=sentence):
        party.look()


@pytest.mark.parametrize(
    ("changes", "given", "sentence"),
    [
        ({}, {"count": 12}, "12 teachers cannot share"),
        ({}, {"count": 30}, "fewer than 3 each"),
        ({"unit": "group"}, {"groups": 11}, "12 teachers cannot share .* groups"),
        ({}, {"count": 120}, None),
    ],
)
def test_a_party_is_told_where_its_records_are_too_few_for_its_teachers(changes, given, sentence, other, tmp_path):
    read = other(**changes)
    data = records(tmp_path / "own.npz", **given)
    settings = [f"privacy.unit={read.terms.unit}"]
    _, remarks = candidate(read, "north", folder=tmp_path, data=data, assignments=settings).look()
    said = " ".join(remarks.refusals + remarks.doubts)
    assert not said if sentence is None else re.search(sentence, said)


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("nobody", {}, "'nobody' takes no part in this proposal. Who does: trust, uni, south, north"),
        ("north", {}, "--data is missing"),
        ("trust", {"data": "own.npz"}, "trust is the guardian: it has no data"),
        ("north", {"data": "own.npz", "assignments": ["aggregation.epsilon=9"]}, "not a teacher party's to set"),
        ("north", {"data": "own.npz", "assignments": ["data.size=28"]}, "the terms say 8"),
    ],
)
def test_what_a_party_could_not_be_is_refused(name, given, sentence, proposal, tmp_path):
    records(tmp_path / "own.npz")
    given = given | ({"data": tmp_path / given["data"]} if "data" in given else {})
    with pytest.raises(SettingError, match=sentence):
        candidate(proposal, name, folder=tmp_path, **given).look()


WINDOWED = {"size": (10, 12), "fit": "pad", "window": (-1350.0, 150.0)}


def pacs(folder):
    """A folder of CT slices of 20 x 16, and the labels of their studies; what the terms say of pictures is not set."""
    from tests.terrine.data.dicoms import made, saved  # needs pydicom

    generator, lines = np.random.default_rng(0), ["study,label"]
    for number in range(60):
        pixels = generator.integers(0, 2000, (20, 16), np.uint16)
        scan = made(pixels, f"P{number}", f"1.2.{number}.1", f"1.2.{number}", RescaleSlope=1, RescaleIntercept=-1400)
        saved(scan, folder / f"IM{number}")
        lines.append(f"1.2.{number},{('ill', 'well')[number % 2]}")
    (folder.parent / "labels.csv").write_text("\n".join(lines))
    return [f"data={{name: dicom, path: {folder}, labels: {folder.parent / 'labels.csv'}}}"]


def test_dicom_and_other_files_become_pictures_as_the_terms_say(other, tmp_path):
    pytest.importorskip("pydicom")
    read = other(**WINDOWED)
    assert "black at -1350 and white at 150" in (told := " ".join(page(read.terms, read.addresses, "x").split()))
    assert "12 wide and 10 high, grey" in told
    assert "padded with black" in told
    north = candidate(read, "north", assignments=pacs(tmp_path / "pacs"))
    south = candidate(read, "south", data=records(tmp_path / "own.npz"))
    shown = {}
    for party in (north, south):
        _, remarks = party.look()
        assert not remarks.refusals
        data = own_params(party._own, read.terms, read.terms.teachers[party.name]).data
        assert (data.size, data.fit, data.channels) == ((10, 12), "pad", 1)
        shown[party.name] = data.load().train_images
    assert data.name == "npz"
    # 20 x 16 becomes 10 x 8 between black edges, and all that is below the window is black, too.
    assert (shown["north"][..., [0, 1, 10, 11]] == 0).all()
    first = north.params["data"] | {"size": [10, 12], "channels": 1, "fit": "pad", "window": "lung"}
    lung = validate({"data": first, "ledger": {"account": "a", "epsilon": 8}}).data.load().train_images
    assert (shown["north"] == lung).all()
    assert (shown["south"] > 0).any(axis=(0, 1)).all()


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ("data.window=bone", r"data\.window=\[-500\.0, 1300\.0\], and the terms say \[-1350\.0, 150\.0\]"),
        ("data.window=[0, 80]", r"data\.window=\[0, 80\], and the terms say \[-1350\.0, 150\.0\]"),
        ("data.fit=crop", r"data\.fit=crop, and the terms say pad"),
        ("data.size=[12, 10]", r"data\.size=\[12, 10\], and the terms say \[10, 12\]"),
        ("data.window=lung", None),
    ],
)
def test_a_party_is_told_both_values_where_its_pictures_would_be_others(own, sentence, other):
    read = other(**WINDOWED)
    given = ["data={name: dicom, path: pacs, labels: labels.csv}", own]
    party = candidate(read, "north", assignments=given)
    if sentence is None:
        assert own_params(party._own, read.terms, 12).data.limits == (-1350.0, 150.0)
        return
    with pytest.raises(SettingError, match=sentence):
        own_params(party._own, read.terms, 12)


def test_the_peer_is_named_both_windows_too_and_usual_pictures_leave_a_release_its_name(proposal):
    ours = proposal.terms.model_copy(update=WINDOWED)
    theirs = ours.model_copy(update={"window": (0.0, 80.0), "fit": "crop"})
    said = difference(ours.public(), theirs.public(), ("north", "south"))
    assert "-1350" in said
    assert "80.0" in said
    assert {"fit", "window", "size"}.isdisjoint(proposal.terms.identity())
    assert ours.identity() != theirs.identity() != proposal.terms.identity()


def test_a_party_signs_with_its_own_key_and_one_proposal_in_one_folder(proposal, other, enrolled, tmp_path):
    data = records(tmp_path / "own.npz")
    with pytest.raises(SettingError, match="Enrol first"):
        accept(candidate(proposal, "north", folder=tmp_path / "nowhere", data=data))
    with pytest.raises(SettingError, match="holds the certificate of 'south', and not that of 'north'"):
        accept(candidate(proposal, "north", folder=enrolled("south"), data=data))
    with pytest.raises(CredentialError, match="certificate for a student, not for a teacher"):
        accept(candidate(proposal, "north", folder=enrolled("uni", "student"), data=data))
    folder = enrolled("north")
    accept(candidate(proposal, "north", folder=folder, data=data))
    with pytest.raises(SettingError, match="holds a party of other terms"):
        accept(candidate(other(minimum=3), "north", folder=folder, data=data))


@pytest.fixture
def guardian(proposal, enrolled):
    folder = enrolled("trust", "guardian")
    accept(candidate(proposal, "trust", folder=folder))
    (folder / "accepted").mkdir()
    return folder


def test_a_guardian_begins_no_session_with_who_accepted_something_else(guardian, other, enrolled, proposal, tmp_path):
    data, held = records(tmp_path / "own.npz"), guardian / "accepted" / "north.json"
    config = read_party(guardian / "party.yaml")
    enrolled("north")
    shutil.copytree(tmp_path / "north" / "credentials", tmp_path / "again" / "credentials")
    held.write_bytes(accept(candidate(proposal, "north", folder=tmp_path / "north", data=data)).read_bytes())
    config.own_credentials()
    good = json.loads(held.read_text())
    held.write_bytes(accept(candidate(other(minimum=3), "north", folder=tmp_path / "again", data=data)).read_bytes())
    with pytest.raises(SettingError, match=r"north accepted other terms on .* Have it accept these"):
        config.own_credentials()
    for change, sentence in (
        ({"terms": "0" * 64}, "is not what its party signed"),
        ({"party": "south"}, "is not what its party signed"),
        ({"signature": "AAAA"}, "is not what its party signed"),
        ({"certificate": "no"}, "is not what its party signed"),
        ({"more": 1}, "is damaged, or is no acceptance"),
        ({"signature": 3}, "is damaged, or is no acceptance"),
    ):
        held.write_text(json.dumps(good | change))
        with pytest.raises(InputError, match=sentence):
            config.own_credentials()


def test_the_next_edition_is_signed_by_who_accepted_the_first_also_when_it_was_broken_off(
    guardian, enrolled, proposal, tmp_path, monkeypatch
):
    data, folder = records(tmp_path / "own.npz"), enrolled("north")
    first = accept(candidate(proposal, "north", folder=folder, data=data)).read_bytes()
    plain = editions.write_text

    def stop_at_the_last_step(path, text):
        if path == folder / "terms.yaml":
            raise KeyboardInterrupt
        plain(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(editions, "write_text", stop_at_the_last_step)
        with pytest.raises(KeyboardInterrupt):
            begin(folder / "party.yaml", look_ahead(folder / "party.yaml", "2"))
    _, kept = (begin(place / "party.yaml", look_ahead(place / "party.yaml", "2")) for place in (guardian, folder))
    assert (kept / "acceptance.json").read_bytes() == first
    (guardian / "accepted").mkdir()
    shutil.copy(folder / "acceptance.json", guardian / "accepted" / "north.json")
    read_party(guardian / "party.yaml").own_credentials()
    (guardian / "accepted" / "north.json").write_bytes(first)
    with pytest.raises(SettingError, match="north accepted other terms"):
        read_party(guardian / "party.yaml").own_credentials()


def test_parties_that_accepted_two_proposals_of_the_same_terms_are_told(guardian, proposal, enrolled, tmp_path):
    """Somebody in the middle of the mails gave one of them other parameters to train with."""
    folder = tmp_path / "changed"
    folder.mkdir()
    params = {**proposal.params, "teacher": {**proposal.params["teacher"], "seed": 1}}
    write_proposal(folder, proposal.terms, params, proposal.addresses, proposal.images, proposal.backbone)
    data = records(tmp_path / "own.npz")
    for name, read in (("north", proposal), ("south", read_proposal(folder))):
        accepted = accept(candidate(read, name, folder=enrolled(name), data=data))
        shutil.copy(accepted, guardian / "accepted" / f"{name}.json")
    with pytest.raises(SettingError, match="somebody's mail was changed, or there are two proposals"):
        read_party(guardian / "party.yaml").own_credentials()
    (guardian / "accepted" / "north.json").unlink()  # and of all, where the guardian's own is another
    with pytest.raises(SettingError, match="somebody's mail was changed, or there are two proposals"):
        read_party(guardian / "party.yaml").own_credentials()


def test_who_accepts_again_with_other_settings_is_told_what_stays_and_who_was_killed_over_it_signs_now(
    proposal, enrolled, guardian, tmp_path
):
    data, folder = records(tmp_path / "own.npz"), enrolled("north")
    path = accept(candidate(proposal, "north", folder=folder, data=data))
    kept = (folder / "party.yaml").read_bytes()
    other = candidate(proposal, "north", folder=folder, data=records(tmp_path / "other.npz"))
    with pytest.raises(SettingError, match=r"own\.params\.data\.path is \S+own\.npz there, and \S+other\.npz here"):
        accept(other)
    with pytest.raises(SettingError, match=r"ledger\.epsilon is \S+ there, and 99\.0 here"):
        accept(candidate(proposal, "trust", folder=guardian, charged=Charged(budget=99.0)))
    accept(candidate(proposal, "trust", folder=guardian))
    assert (folder / "party.yaml").read_bytes() == kept
    path.unlink()
    accept(other)
    assert read_party(folder / "party.yaml").own.params["data"]["path"] == str(tmp_path / "other.npz")


@pytest.mark.parametrize(("name", "role"), [("trust", "guardian"), ("north", "teacher")])
def test_the_account_of_a_party_goes_on_in_the_folder_of_another_proposal(
    name, role, proposal, other, enrolled, tmp_path
):
    """Two releases of ε = 6 of the same people are not two accounts of 8."""
    data = records(tmp_path / "own.npz") if role == "teacher" else None
    folder, read, charged = enrolled(name, role), other(minimum=3), Charged("h-2026", 8.0)

    def next_one(folder, **said):
        shutil.copytree(tmp_path / name / "credentials", folder / "credentials", dirs_exist_ok=True)
        accept(candidate(read, name, folder=folder, data=data, charged=Charged(**said)))
        return read_party(folder / "party.yaml")

    accept(candidate(proposal, name, folder=folder, data=data, charged=charged))
    config = read_party(folder / "party.yaml")
    own = OwnAccount(config)
    own.check()
    own.charge()
    spent = account_standing(config)["spent"]
    assert spent == pytest.approx(6)
    second = next_one(tmp_path / "second")
    assert second.ledger == config.ledger
    assert not (tmp_path / "second" / "ledger").exists()
    assert (account_standing(second)["spent"], account_standing(second)["budget"]) == (spent, 8.0)
    with pytest.raises(BudgetError, match="past its budget"):
        OwnAccount(second).check()
    with pytest.raises(LedgerError, match=r"is registered with ε=8 at .*, not with ε=20 at"):
        next_one(tmp_path / "third", account="h-2026", budget=20.0)
    assert not (tmp_path / "third" / "party.yaml").exists()
    assert next_one(tmp_path / "far" / "away", beside=folder).ledger == config.ledger
    for place in (name, "second"):
        shutil.copytree(tmp_path / place, tmp_path / "moved" / place)
    moved = read_party(tmp_path / "moved" / "second" / "party.yaml")
    assert moved.ledger.key == tmp_path / "moved" / name / "ledger" / "key"


def test_who_names_another_account_is_told_that_two_do_not_add_up(proposal, other, enrolled, tmp_path):
    """A guardian has no records by which it would know that both are of the same people."""

    def accepted(folder, account, budget, read):
        accept(candidate(read, "trust", folder=folder, charged=Charged(account, budget)))
        config = read_party(folder / "party.yaml")
        OwnAccount(config).check()
        return config

    folder = enrolled("trust", "guardian")
    first = accepted(folder, "h-2026", 8.0, proposal)
    OwnAccount(first).charge()
    assert account_standing(first)["beside"] == 0
    shutil.copytree(folder / "credentials", tmp_path / "second" / "credentials")
    second = accepted(tmp_path / "second", "new", 20.0, other(minimum=3))
    standing = account_standing(second)
    assert (standing["beside"], standing["spent"], standing["left"]) == (1, 0, 20)
    _, ledger = begun(second.ledger)
    ledger.link(*ledger.datasets())
    linked = account_standing(second)
    assert (linked["beside"], linked["spent"]) == (0, pytest.approx(6))
    assert linked["left"] == account_standing(first)["left"] < 8


def test_a_party_with_two_ledgers_or_two_accounts_says_which_goes_on(guardian, other, enrolled, tmp_path):
    read, places = other(minimum=3), {place: tmp_path / place for place in ("second", "third", "fourth")}
    for place in places.values():
        shutil.copytree(guardian / "credentials", place / "credentials")

    def accepted(place, **said):
        accept(candidate(read, "trust", folder=places[place], charged=Charged(**said)))
        return read_party(places[place] / "party.yaml").ledger

    assert accepted("second", account="others").account == "others"
    with pytest.raises(SettingError, match=r"has the accounts others, collaboration\. Say whose data these are"):
        accepted("third")
    assert accepted("third", account="collaboration").epsilon == read.terms.epsilon
    path = places["second"] / "party.yaml"
    path.write_text(path.read_text().replace("../trust/", ""))
    with pytest.raises(SettingError, match=r"ledger in each of \S+second, \S+, and none .* --ledger FOLDER"):
        accepted("fourth", account="collaboration")
    assert accepted("fourth", beside=guardian).key == guardian / "ledger" / "key"


def test_a_party_may_have_no_record_of_a_class_and_is_told(proposal, other, tmp_path):
    path = records(tmp_path / "own.npz")
    with np.load(path) as held:
        arrays = dict(held)
    np.savez(path, **arrays | {"labels": np.zeros_like(arrays["labels"])})
    party = candidate(proposal, "north", folder=tmp_path, data=path)
    _, remarks = party.look()
    assert not remarks.refusals
    assert any("No training record is of 'well'" in note for note in remarks.notes)
    more = other(class_names=["ill", "rare", "well"])  # a class that has no name at this party
    _, remarks = candidate(more, "north", folder=tmp_path, data=records(path)).look()
    assert not remarks.refusals
    assert [note for note in remarks.notes if note.startswith("No record here is of 'rare': no teacher here will")]


def test_the_command_prints_the_page_and_signs_only_what_somebody_said_yes_to(proposal, enrolled, tmp_path):
    def run(*options, answer=None):
        arguments = ["party", "accept", proposal.folder, "--as", "north", "--data", data, "--folder", folder, *options]
        return CliRunner().invoke(app, list(map(str, arguments)), input=answer, env={"COLUMNS": "200"})

    data, folder = records(tmp_path / "own.npz"), enrolled("north")
    done = run(answer="n\n")
    assert done.exit_code == 1
    assert "Nothing was signed" in done.output
    assert sorted(path.name for path in folder.iterdir()) == ["credentials"]
    for told in ("Whom ε protects", "9 teachers", "ill, well", "14 days" if proposal.terms.deadline else "party.yaml"):
        assert told in " ".join(done.output.split())
    with pytest.raises(InputError, match="another proposal than the one whose digest you were told"):
        raise run("--expect", "0" * 24, "--yes").exception
    done = run("--expect", proposal.shown, "--yes")
    assert done.exit_code == 0, done.output
    assert "Mail" in done.output
    assert (folder / "acceptance.json").is_file()


def test_a_guardian_is_told_which_account_it_charges_and_where_there_is_no_room(proposal, other, enrolled):
    folder = enrolled("trust", "guardian")
    told = ["party", "accept", proposal.folder, "--as", "trust", "--folder", folder, "--yes"]
    done = CliRunner().invoke(app, list(map(str, [*told, "--account", "h-2026", "--budget", 8])))
    assert re.search(r"account 'h-2026' in \S+: ε = 8 over all releases, of which 0 is spent\.\n", done.output)
    own = OwnAccount(read_party(folder / "party.yaml"))
    own.check()
    own.charge()
    second = folder.parent / "second"
    shutil.copytree(folder / "credentials", second / "credentials")
    told = ["party", "accept", other(minimum=3).folder, "--as", "trust", "--yes", "--folder"]
    done = CliRunner().invoke(app, list(map(str, [*told, second])))
    assert re.search(r"is spent\. These terms may cost ε = \S+, for which there is no room", done.output)
    third = folder.parent / "third"
    shutil.copytree(folder / "credentials", third / "credentials")
    done = CliRunner().invoke(app, list(map(str, [*told, third, "--account", "new", "--ledger", folder])))
    assert "0 is spent. Its ledger has another account, whose releases are not added to this one's" in done.output


def test_sums_allow_a_party_no_more_records_than_the_public_bound(proposed, tmp_path):
    sums = ["aggregation={mechanism: moments, epsilon: 6}", "student={kind: sums}"]
    read = proposed(tmp_path / "sums", *sums, records=50, teachers={"north": 1, "south": 2})
    data = records(tmp_path / "own.npz")
    for name, count in (("north", 1), ("south", 0)):
        _, remarks = candidate(read, name, folder=tmp_path, data=data).look()
        assert len([text for text in remarks.refusals if "the terms allow north 50 (1 times 50)" in text]) == count
