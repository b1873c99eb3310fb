"""A proposal from public inputs alone, and what becomes of one that was changed on its way."""

import json
import re
import shutil
import zipfile
from dataclasses import replace

import pytest

from tasks.parties.agreement import proposal as proposals
from tasks.parties.agreement.proposal import archive, opened, read_proposal
from tasks.parties.agreement.propose import Wish, propose
from tasks.parties.agreement.terms_page import page
from tasks.parties.config import read_party
from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.pricing import price
from tests.tasks.parties.conftest import WISH


def test_terms_follow_from_a_preset_and_public_inputs_and_no_record_is_there_to_be_read(proposal, project):
    terms = proposal.terms
    assert list(terms.teachers.items()) == [("south", 9), ("north", 12)]
    assert (terms.guardian, terms.student, terms.minimum, terms.class_names) == ("trust", "uni", 21, ["ill", "well"])
    assert (terms.size, terms.channels, terms.queries, terms.asked) == (8, 1, 60, 60)
    assert price(terms.event(), terms.delta) == pytest.approx(6)
    assert proposal.addresses == {"guardian": "127.0.0.1:7801", "student": "h:7802"}
    assert "data" not in proposal.params["teacher"]
    assert not (project / "data" / "private").exists()
    assert not list((project / "data" / "public").glob("proposal-*"))


def test_the_same_wish_is_the_same_proposal_and_another_vote_has_another_edition(proposal, proposed, tmp_path):
    again = proposed(tmp_path / "again")
    assert (again.digest, again.terms) == (proposal.digest, proposal.terms)
    editions = {proposal.terms.edition}
    editions |= {
        proposed(tmp_path / str(number), *changes, **wish).terms.edition
        for number, (changes, wish) in enumerate(
            [(["backbone.projection=20"], {}), (["teachers.ridge=2"], {}), ([], {"class_names": ["a", "b"]})]
        )
    }
    assert len(editions) == 4
    later = proposed(tmp_path / "later", deadline=60.0, name="lungs")
    assert later.terms.identity() == proposal.terms.identity()
    assert later.terms.edition == proposal.terms.edition
    assert page(later.terms, later.addresses, later.shown).startswith("Proposal lungs\n")
    assert "name" not in proposal.terms.public()


def test_noise_that_is_chosen_hides_somebody_who_is_at_several_parties(proposal, proposed, tmp_path):
    twice = proposed(tmp_path / "twice", overlap=2).terms
    assert twice.sigma == pytest.approx(2 * proposal.terms.sigma)
    assert twice.asked == proposal.terms.asked
    assert price(twice.event(), twice.delta) == pytest.approx(6)


@pytest.mark.parametrize(
    ("assignments", "changes", "sentence"),
    [
        ([], {"class_names": None}, "--classes is missing"),
        ([], {"guardian": ("trust", "here")}, "An address is host:port"),
        ([], {"minimum": 22}, "minimum=22 is above the 21 teachers"),
        ([], {"overlap": 3}, "overlap=3 is above the 2 teacher parties"),
        ([], {"teachers": {"trust": 2}}, "must have different names"),
        (["queries.sources={pool: 1}", "data.pool=test"], {}, "somebody's own images"),
        (["data.name=table", "data.target=x", "data.public_fraction=0.1"], {}, "rows of somebody's own table"),
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
    wish = Wish(**(WISH | {"teachers": {"north": 1, "south": 2}}))
    summed, outlook = propose(tmp_path / "sums", "own", AUTO, replace(wish, records=500))
    assert (summed.terms.mechanism, summed.terms.records) == ("gradients", 500)
    assert summed.params["student"]["student"]["kind"] == "sums"
    assert outlook.doubt is None
    assert re.search(r"records are summed\. From about \d+ of them at all parties together", outlook.notes[0])
    few = propose(tmp_path / "few", "own", AUTO, replace(wish, records=2))[1]
    assert "The terms allow 6 records in all" in few.doubt
    voted, outlook = propose(tmp_path / "votes", "own", AUTO, replace(wish, teachers={"north": 12, "south": 9}))
    assert voted.terms.mechanism == "histogram"
    assert outlook.notes[0].startswith("21 teachers have a signal of ")
    assert "better student at the same ε: --records N" in outlook.notes[1]
    assert "privacy.moments falls away" in outlook.notes[2]
    assert outlook.doubt.startswith("21 teachers are few for ε = 6.")


@pytest.mark.parametrize("assignments", [[], [*AUTO, "student.statistics=current"]])
def test_a_bound_on_records_that_nobody_sums_is_refused(assignments, proposed, tmp_path):
    with pytest.raises(SettingError, match=r"--records bounds sums, and with .*=histogram teachers vote"):
        proposed(tmp_path / "votes", *assignments, records=500)


@pytest.fixture
def mailed(proposal, tmp_path):
    shutil.copytree(proposal.folder, tmp_path / "mailed")
    return tmp_path / "mailed"


@pytest.mark.parametrize(
    "name",
    ["terms.yaml", "params.yaml", "images/manifest.json", "images/queries-00001.npy", "backbone/backbone.safetensors"],
)
def test_a_proposal_of_which_one_byte_is_another_is_refused(name, mailed):
    content = bytearray((mailed / name).read_bytes())
    content[-2] ^= 1
    (mailed / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name} is missing or was changed since the proposal was made"):
        read_proposal(mailed)


def rewritten(mailed, **changes):
    manifest = json.loads((mailed / "proposal.json").read_text())
    (mailed / "proposal.json").write_text(json.dumps(manifest | changes))


def test_a_proposal_that_was_made_anew_on_its_way_has_another_digest(proposal, mailed):
    assert read_proposal(mailed, proposal.shown).digest == proposal.digest
    rewritten(mailed, addresses={"guardian": "thief.example.org:1", "student": "h:7802"})
    assert read_proposal(mailed).digest != proposal.digest
    with pytest.raises(InputError, match="another proposal than the one whose digest you were told"):
        read_proposal(mailed, proposal.shown)
    with pytest.raises(InputError, match="another proposal than the one whose digest you were told"):
        read_proposal(proposal.folder, proposal.digest[:4])


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", "proposal.json", "a\\..\\b"])
def test_a_manifest_names_nothing_outside_the_proposal(name, mailed):
    manifest = json.loads((mailed / "proposal.json").read_text())
    rewritten(mailed, files=manifest["files"] | {name: "0" * 64})
    with pytest.raises(InputError, match="names a file outside the proposal"):
        read_proposal(mailed)
    with pytest.raises(InputError, match="names a file outside the proposal"), opened(archive(mailed)):
        pass


def test_an_archive_is_read_as_its_folder_and_nothing_else_in_it_is(proposal, mailed):
    packed = archive(mailed)
    with zipfile.ZipFile(packed, "a") as more:
        more.writestr("evil.sh", "rm")
    with opened(packed, proposal.shown) as read:
        assert read.terms == proposal.terms
        assert not (read.folder / "evil.sh").exists()
    packed.write_bytes(packed.read_bytes()[:500])
    with pytest.raises(InputError, match="is no proposal, neither a folder nor an archive of one"), opened(packed):
        pass


def test_an_archive_that_would_fill_the_disk_is_not_unpacked(mailed, monkeypatch):
    packed = archive(mailed)
    monkeypatch.setattr(proposals, "LARGEST", sum(path.stat().st_size for path in mailed.rglob("*.*")) - 1)
    with pytest.raises(InputError, match=r"\.zip would take more than .* GiB"), opened(packed):
        pass


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 2}', '{"format": 1, "files": {"a": 1}}'])
def test_a_manifest_that_is_none_is_named(content, mailed):
    (mailed / "proposal.json").write_text(content)
    with pytest.raises(InputError, match=r"proposal\.json is damaged"):
        read_proposal(mailed)


def test_a_trial_proposes_by_itself_and_needs_no_run(project, tmp_path):
    from tasks.parties.init import init

    values = {"minimum": None, "guardian": "127.0.0.1:0", "student": "127.0.0.1:0", "account": "trial", "epsilon": None}
    values |= {"edition": "first", "days": 1.0, "class_names": ["ill", "well"], "parties": 3}
    with pytest.raises(SettingError, match=r"--set partition\.teachers=N"):
        init(tmp_path / "trial", "own", [], **values)
    terms = init(tmp_path / "trial", "own", ["partition.teachers=20"], **values)
    assert list(terms.teachers.values()) == [7, 7, 6]
    assert read_party(tmp_path / "trial" / "party-2" / "party.yaml", "teacher").terms == terms
    assert read_proposal(tmp_path / "trial" / "proposal").terms == terms
    with pytest.raises(SettingError, match="exists already"):
        init(tmp_path / "trial", "own", [], **values)
