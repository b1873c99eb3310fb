"""A proposal is made only from public inputs, and one that was changed in transit is refused."""

import re
import shutil
import zipfile
from dataclasses import replace

import pytest

from tasks.collaboration.proposal import archive, opened, read_proposal
from tasks.collaboration.propose import ProposalOptions, propose
from tasks.collaboration.terms_page import page
from tasks.serving import pages
from terrine.errors import ArtefactError, InputError, SettingError
from terrine.privacy.accounting.pricing import price
from tests.tasks.collaboration.conftest import WISH, lines


def test_terms_follow_from_a_preset_and_public_inputs_and_no_record_is_there_to_be_read(proposal, project):
    terms = proposal.terms
    assert list(terms.teachers.items()) == [("south", 9), ("north", 12)]
    assert (terms.guardian, terms.student, terms.minimum, terms.class_names) == ("trust", "uni", 21, ["ill", "well"])
    assert (terms.size, terms.channels, terms.queries, terms.queried) == (8, 1, 60, 60)
    assert price(terms.event(), terms.delta) == pytest.approx(6)
    assert [terms.services[role].url for role in ("guardian", "student")] == [
        "https://127.0.0.1:7801",
        "https://h:7802",
    ]
    assert {*terms.keys} == {*terms.roles()}
    assert not (project / "data" / "private").exists()
    assert not list((project / "data" / "public").glob("proposal-*"))


def test_the_same_wish_is_the_same_proposal_and_another_vote_has_another_edition(proposal, proposed, tmp_path):
    again = proposed(tmp_path / "again")
    assert again.terms == proposal.terms
    editions = {proposal.terms.edition}
    editions |= {
        proposed(tmp_path / str(number), *changes, **options).terms.edition
        for number, (changes, options) in enumerate(
            [(["backbone.projection=20"], {}), (["teachers.ridge=2"], {}), ([], {"class_names": ["a", "b"]})]
        )
    }
    assert len(editions) == 4
    later = proposed(tmp_path / "later", deadline=60.0, name="lungs")
    assert later.terms.identity() == proposal.terms.identity()
    assert later.terms.edition == proposal.terms.edition
    assert page(later.terms).startswith("Proposal lungs\n")
    assert "name" not in proposal.terms.public()


def test_noise_that_is_chosen_hides_somebody_who_is_at_several_parties(proposal, proposed, tmp_path):
    twice = proposed(tmp_path / "twice", overlap=2).terms
    assert twice.sigma == pytest.approx(2 * proposal.terms.sigma)
    assert twice.queried == proposal.terms.queried
    assert price(twice.event(), twice.delta) == pytest.approx(6)


@pytest.mark.parametrize(
    ("assignments", "changes", "sentence"),
    [
        ([], {"class_names": None}, "--classes is missing"),
        ([], {"guardian": "north"}, "line of north has no URL"),
        ([], {"student": "nobody"}, "nobody sent no line"),
        ([], {"minimum": 22}, "minimum=22 is above the 21 teachers"),
        ([], {"overlap": 3}, "overlap=3 is above the 2 teacher parties"),
        ([], {"teachers": {"trust": 2}}, "must have different names"),
        (["queries.sources={pool: 1}", "data.pool=test"], {}, "images of one party"),
        (["data.name=table", "data.target=x", "data.public_fraction=0.1"], {}, "public rows are of one party"),
        (["aggregation.mechanism=lnmax", "aggregation.scale=9"], {}, "does not go with aggregation.where=parties"),
    ],
)
def test_what_parties_could_not_do_together_is_not_proposed(assignments, changes, sentence, proposed, tmp_path):
    with pytest.raises(SettingError, match=sentence):
        proposed(tmp_path / "proposal", *assignments, **changes)
    assert not (tmp_path / "proposal").exists()


def test_of_sums_the_most_records_of_a_party_are_a_public_bound(proposed, tmp_path):
    sums = ["aggregation={mechanism: moments, epsilon: 6}", "student={kind: sums}"]
    terms = proposed(tmp_path / "sums", *sums, records=500, teachers={"north": 1, "south": 2}).terms
    assert (terms.records, terms.length, terms.queries) == (500, 31, 1)
    with pytest.raises(SettingError, match="could wrap sums around"):
        proposed(tmp_path / "more", *sums, records=10**9)


AUTO = ["aggregation.mechanism=auto", "student.l2=0.5"]


def test_a_mechanism_that_is_chosen_sums_records_where_somebody_says_how_many_there_are(project, tmp_path):
    options = ProposalOptions(lines(project), **(WISH | {"teachers": {"north": 1, "south": 2}}))
    summed, outlook = propose(tmp_path / "sums", "own", AUTO, replace(options, records=500))
    assert (summed.terms.mechanism, summed.terms.records) == ("gradients", 500)
    assert summed.terms.learning["student"]["kind"] == "sums"
    assert re.fullmatch(r"A student learns from about \d+ records at all parties; the terms allow 1,500\.", *outlook)
    few = propose(tmp_path / "few", "own", AUTO, replace(options, records=2))[1]
    assert "the terms allow 6." in few[0]
    assert few[1].startswith("Doubtful: ")
    voted, outlook = propose(tmp_path / "votes", "own", AUTO, replace(options, teachers={"north": 12, "south": 9}))
    assert voted.terms.mechanism == "histogram"
    assert [text.split()[0] for text in outlook] == ["21", "Doubtful:"]


@pytest.mark.parametrize("assignments", [[], [*AUTO, "student.statistics=current"]])
def test_a_bound_on_records_that_nobody_sums_is_refused(assignments, proposed, tmp_path):
    with pytest.raises(SettingError, match=r"--records bounds sums, and with .*=histogram teachers vote"):
        proposed(tmp_path / "votes", *assignments, records=500)


@pytest.fixture
def sent(proposal, tmp_path):
    shutil.copytree(proposal.folder, tmp_path / "sent")
    return tmp_path / "sent"


FILES = ["images/manifest.json", "images/queries-00001.npy", "backbone/backbone.safetensors", "backbone/manifest.json"]


@pytest.mark.parametrize("name", FILES)
def test_a_proposal_of_which_one_byte_is_another_is_refused(name, sent):
    content = bytearray((sent / name).read_bytes())
    content[-2] ^= 1
    (sent / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name} is not the agreed file"):
        read_proposal(sent)


def test_a_proposal_that_was_made_anew_on_its_way_has_another_digest(proposal, sent):
    assert read_proposal(sent, proposal.shown).terms == proposal.terms
    text = (sent / "terms.yaml").read_text()
    (sent / "terms.yaml").write_text(text.replace("https://127.0.0.1:7801", "https://thief.example.org:1"))
    assert read_proposal(sent).terms.digest != proposal.terms.digest
    for folder, expected in ((sent, proposal.shown), (proposal.folder, proposal.terms.digest[:4])):
        with pytest.raises(InputError, match="has the digest"):
            read_proposal(folder, expected)


def test_an_archive_is_read_as_its_folder_and_nothing_else_in_it_is_taken(proposal, sent, tmp_path):
    packed = archive(sent)
    with zipfile.ZipFile(packed, "a") as more:
        more.writestr("evil.sh", "rm")
        more.writestr("../outside", "rm")
    with opened(packed, proposal.shown) as read:
        assert read.terms == proposal.terms
        copied = read.copy(tmp_path / "copied")
    assert not (copied.folder / "evil.sh").exists()
    assert not list(tmp_path.rglob("outside"))
    packed.write_bytes(packed.read_bytes()[:500])
    with pytest.raises(ArtefactError, match="is damaged"), opened(packed):
        pass


def test_an_archive_that_would_fill_the_disk_is_not_unpacked(sent, monkeypatch):
    packed = archive(sent)
    monkeypatch.setattr(pages, "LARGEST", sum(path.stat().st_size for path in sent.rglob("*.*")) - 1)
    with pytest.raises(ArtefactError, match=r"would take more than .* GiB"), opened(packed):
        pass


@pytest.mark.parametrize("content", ["{", "[]", '{"shards": {"queries": [{"file": "../x"}]}}'])
def test_a_manifest_that_is_none_is_refused(content, sent):
    (sent / "images" / "manifest.json").write_text(content)
    with pytest.raises(InputError, match="is not the agreed file"):
        read_proposal(sent)
