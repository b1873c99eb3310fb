"""A party accepts a proposal: its data are checked, its folder is laid out, and it signs the terms."""

import re
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from flows.cli import app
from tasks.collaboration.accept import accept, candidate
from tasks.collaboration.local_training import own_params
from tasks.collaboration.proposal import read_proposal, write_proposal
from tasks.collaboration.terms_page import page
from tasks.config.params import validate
from tasks.parties.config import OwnTeachers, read_party
from tasks.parties.keys import acceptance_content, check_signature, create_key
from tasks.parties.ledgers import OwnAccount, account_status, open_ledger
from terrine.errors import BudgetError, InputError, LedgerError, SettingError


def records(path, count=120, names=("ill", "well"), groups=None):
    images = np.random.default_rng(0).integers(0, 256, (count, 1, 10, 12), np.uint8)
    more = {} if groups is None else {"groups": np.arange(count) % groups}
    np.savez(path, images=images, labels=np.arange(count) % len(names), class_names=names, **more)
    return path


@pytest.fixture
def keyed(project, tmp_path):
    """Make a party's folder with its key."""

    def make(name, folder=None):
        return shutil.copytree(project / "keys" / name, folder or tmp_path / name, dirs_exist_ok=True)

    return make


@pytest.fixture
def other(proposal, tmp_path):
    """Write the same proposal with other terms."""

    def make(**changes):
        folder = tmp_path / "other"
        folder.mkdir()
        terms = proposal.terms.model_copy(update=changes)
        write_proposal(folder, terms, proposal.folder / "images", proposal.folder / "backbone")
        return read_proposal(folder)

    return make


def test_each_role_has_a_folder_with_all_that_it_needs_and_one_signature(proposal, keyed, tmp_path):
    data = records(tmp_path / "own.npz")
    for name, role in proposal.terms.roles().items():
        folder = keyed(name)
        party = candidate(proposal, name, folder=folder, data=data if role == "teacher" else None)
        _, remarks = party.check_data()
        assert not remarks.refusals
        path = accept(party)
        config = read_party(folder / "party.yaml", role)
        assert (config.name, config.terms) == (name, proposal.terms)
        assert (folder / "terms.txt").read_text().count(proposal.shown) == 1
        assert folder.stat().st_mode & 0o077 == 0
        signature = re.search(r'"signature": "(\w+)"', path.read_text())[1]
        check_signature(proposal.terms.keys[name], acceptance_content(proposal.terms.digest), signature)
        assert accept(party) == path
    assert read_party(tmp_path / "trust" / "party.yaml").ledger.epsilon == proposal.terms.epsilon


@pytest.mark.parametrize(
    ("changes", "given", "sentence"),
    [
        ({}, {"names": ["fit", "ill"]}, r"^The agreed classes are 'ill', 'well', but these data contain 'fit'"),
        ({}, {"names": ["ill", "Well"]}, r"'ill', 'well', but these data contain 'Well'"),
        ({"unit": "group"}, {}, "own.params.privacy.unit|these data have no groups"),
        ({"version": "9.9"}, {}, "agreed on Terrine 9.9, and this is"),
    ],
)
def test_data_that_do_not_go_with_the_terms_are_refused(changes, given, sentence, other, tmp_path):
    party = candidate(other(**changes), "north", folder=tmp_path, data=records(tmp_path / "own.npz", **given))
    with pytest.raises((InputError, SettingError), match=sentence):
        party.check_data()


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
    _, remarks = candidate(read, "north", folder=tmp_path, data=data, assignments=settings).check_data()
    said = " ".join(remarks.refusals + remarks.doubts)
    assert not said if sentence is None else re.search(sentence, said)


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("nobody", {}, "'nobody' takes no part in this proposal: trust, uni, south, north do"),
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
        candidate(proposal, name, folder=tmp_path, **given).check_data()


def own_of(party):
    places = {part: party.proposal.folder / part for part in ("images", "backbone")}
    return OwnTeachers(params=party.params, **places)


WINDOWED = {"size": (10, 12), "fit": "pad", "window": (-1350.0, 150.0)}


def pacs(folder):
    """Write 20 x 16 CT slices with study labels; return data settings without the image settings that the terms fix."""
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
    assert "black at -1350 and white at 150" in (told := " ".join(page(read.terms).split()))
    assert "12 wide and 10 high, grey" in told
    assert "padded with black" in told
    north = candidate(read, "north", assignments=pacs(tmp_path / "pacs"))
    south = candidate(read, "south", data=records(tmp_path / "own.npz"))
    shown = {}
    for party in (north, south):
        _, remarks = party.check_data()
        assert not remarks.refusals
        data = own_params(own_of(party), read.terms, read.terms.teachers[party.name]).data
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
        assert own_params(own_of(party), read.terms, 12).data.limits == (-1350.0, 150.0)
        return
    with pytest.raises(SettingError, match=sentence):
        own_params(own_of(party), read.terms, 12)


def test_a_party_signs_with_its_own_key_and_one_proposal_in_one_folder(proposal, other, keyed, tmp_path):
    data = records(tmp_path / "own.npz")
    with pytest.raises(InputError, match="terrine party key"):
        accept(candidate(proposal, "north", folder=tmp_path / "nowhere", data=data))
    with pytest.raises(SettingError, match="is not that of north in the terms"):
        accept(candidate(proposal, "north", folder=keyed("south"), data=data))
    create_key(tmp_path / "stranger", "north")
    with pytest.raises(SettingError, match="belongs to no party"):
        accept(candidate(proposal, "north", folder=tmp_path / "stranger", data=data))
    folder = keyed("north")
    accept(candidate(proposal, "north", folder=folder, data=data))
    with pytest.raises(SettingError, match="holds a party of other terms"):
        accept(candidate(other(minimum=3), "north", folder=folder, data=data))


def test_a_party_that_accepts_again_with_other_settings_is_told_what_stays(proposal, keyed, tmp_path):
    data, folder, trust = records(tmp_path / "own.npz"), keyed("north"), keyed("trust")
    path = accept(candidate(proposal, "north", folder=folder, data=data))
    kept = (folder / "party.yaml").read_bytes()
    other = candidate(proposal, "north", folder=folder, data=records(tmp_path / "other.npz"))
    with pytest.raises(SettingError, match=r"own\.params\.data\.path is \S+own\.npz there, and \S+other\.npz here"):
        accept(other)
    accept(candidate(proposal, "trust", folder=trust))
    with pytest.raises(SettingError, match=r"ledger\.epsilon is \S+ there, and 99\.0 here"):
        accept(candidate(proposal, "trust", folder=trust, budget=99.0))
    path.unlink()
    accept(candidate(proposal, "north", folder=folder, data=data))
    assert path.is_file()
    assert (folder / "party.yaml").read_bytes() == kept


@pytest.mark.parametrize("name", ["trust", "north"])
def test_the_account_of_a_party_goes_on_in_the_folder_of_another_proposal(name, proposal, other, keyed, tmp_path):
    """Two releases of ε = 6 of the same people are not two accounts of 8."""
    data = records(tmp_path / "own.npz") if name == "north" else None
    read = other(minimum=3)

    def party(read, folder, **said):
        accept(candidate(read, name, folder=keyed(name, folder), data=data, **said))
        return read_party(folder / "party.yaml")

    config = party(proposal, tmp_path / name, account="h-2026", budget=8.0)
    own = OwnAccount(config)
    own.check()
    own.charge()
    spent = account_status(config)["spent"]
    assert spent == pytest.approx(6)
    second = party(read, tmp_path / "second")
    assert second.ledger == config.ledger
    assert (account_status(second)["spent"], account_status(second)["budget"]) == (spent, 8.0)
    with pytest.raises(BudgetError, match="past its budget"):
        OwnAccount(second).check()
    with pytest.raises(LedgerError, match=r"has a budget of ε=8 at .*, not of ε=20 at"):
        party(read, tmp_path / "third", account="h-2026", budget=20.0)
    assert not (tmp_path / "third" / "party.yaml").exists()
    far = party(read, tmp_path / "far" / "away", ledger=tmp_path / f"ledger-{name}")
    assert far.ledger == config.ledger
    # Another account of the same ledger does not add up with it, unless they are linked.
    new = party(read, tmp_path / "fourth", account="new", budget=20.0)
    OwnAccount(new).check()
    standing = account_status(new)
    assert (standing["beside"], standing["spent"], standing["left"]) == (1, 0, 20)
    _, ledger = open_ledger(new.ledger)
    ledger.link(*ledger.datasets())
    linked = account_status(new)
    assert (linked["beside"], linked["spent"]) == (0, pytest.approx(6))
    assert linked["left"] == account_status(config)["left"] < 8


def test_a_party_may_have_no_record_of_a_class_and_is_told(proposal, other, tmp_path):
    path = records(tmp_path / "own.npz")
    with np.load(path) as held:
        arrays = dict(held)
    np.savez(path, **arrays | {"labels": np.zeros_like(arrays["labels"])})
    party = candidate(proposal, "north", folder=tmp_path, data=path)
    _, remarks = party.check_data()
    assert not remarks.refusals
    assert any("No training record has 'well'" in note for note in remarks.notes)
    more = other(class_names=["ill", "rare", "well"])  # a class that has no name at this party
    _, remarks = candidate(more, "north", folder=tmp_path, data=records(path)).check_data()
    assert not remarks.refusals
    assert [note for note in remarks.notes if note.startswith("No record here is of 'rare': no teacher here will")]


def test_the_command_prints_the_page_and_signs_only_what_somebody_said_yes_to(proposal, keyed, tmp_path):
    def run(*options, answer=None):
        arguments = ["party", "accept", proposal.folder, "--as", "north", "--data", data, "--folder", folder, *options]
        return CliRunner().invoke(app, list(map(str, arguments)), input=answer, env={"COLUMNS": "200"})

    data, folder = records(tmp_path / "own.npz"), keyed("north")
    done = run(answer="n\n")
    assert done.exit_code == 1
    assert "Nothing was signed" in done.output
    assert sorted(path.name for path in folder.iterdir()) == ["key.pem"]
    for told in ("Neighbouring data", "9 teachers", "ill, well", "14 days"):
        assert told in " ".join(done.output.split())
    with pytest.raises(InputError, match="has the digest"):
        raise run("--expect", "0" * 24, "--yes").exception
    done = run("--expect", proposal.shown, "--yes")
    assert done.exit_code == 0, done.output
    assert "terrine party submit --config" in " ".join(done.output.split())
    assert (folder / "acceptance.json").is_file()


def test_a_guardian_is_told_which_account_it_charges_and_if_there_is_no_room(proposal, other, keyed, tmp_path):
    def told(read, folder, *more):
        arguments = [
            "party",
            "accept",
            read.folder,
            "--as",
            "trust",
            "--yes",
            "--folder",
            keyed("trust", folder),
            *more,
        ]
        return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "400"}).output

    first = told(proposal, tmp_path / "trust", "--account", "h-2026", "--budget", 8)
    assert re.search(r"account 'h-2026' in \S+: ε = 8 over all releases, of which 0 is spent\.\n", first)
    own = OwnAccount(read_party(tmp_path / "trust" / "party.yaml"))
    own.check()
    own.charge()
    read = other(minimum=3)
    assert re.search(r"These terms may cost ε = \S+, more than is left", told(read, tmp_path / "second"))
    third = told(read, tmp_path / "third", "--account", "new")
    assert "0 is spent. Its ledger has 1 other account, whose releases are not added to this one's" in third


def test_sums_allow_a_party_no_more_records_than_the_public_bound(proposed, tmp_path):
    sums = ["aggregation={mechanism: moments, epsilon: 6}", "student={kind: sums}"]
    read = proposed(tmp_path / "sums", *sums, records=50, teachers={"north": 1, "south": 2})
    data = records(tmp_path / "own.npz")
    for name, count in (("north", 1), ("south", 0)):
        _, remarks = candidate(read, name, folder=tmp_path, data=data).check_data()
        assert len([text for text in remarks.refusals if "the terms allow north 50 (1 times 50)" in text]) == count
