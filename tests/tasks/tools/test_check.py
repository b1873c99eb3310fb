"""`terrine check`: what is seen before any work, and what it refuses."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

from flows.cli import app
from flows.cli.check import refuse
from tasks.config.presets import derive, resolve
from tasks.config.values import as_yaml
from tasks.pipeline.dataset import SOURCE, scan_files
from tasks.runtime.accounts import people_in, release_at_price
from tasks.runtime.parameters import resolve_auto, task_from_survey
from tasks.runtime.releases import list_releases, make_noise
from tasks.runtime.run import Run
from tasks.runtime.store import write_json, write_text
from tasks.tools.check import WEAK_BUT_PUBLIC, inspect_run, weak_classes
from tasks.tools.duration import BORDER, LARGEST_DENSE, PROJECTION, SHARED, image_seconds
from tasks.transcription.clients import section
from tasks.transcription.release import open_account as open_transcribed
from tasks.transcription.release import release_terms
from terrine.errors import InputError, SettingError
from terrine.models import spectra, wavelets
from terrine.models.architecture import PROJECTION_BATCHES
from terrine.planning import ENOUGH, advise, teachers_with_class
from terrine.privacy.accounting.pricing import price
from terrine.transcription.accounting import claimed, event_of


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "params.yaml").write_text("run: own\n")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    preset = {
        "data": {"name": "folder", "path": "images", "size": 8, "channels": 3},
        "partition": {"teachers": "auto"},
        "queries": {"count": "auto"},
        "aggregation": {"sigma": "auto", "epsilon": 4},
        "ledger": {"account": "clinic", "epsilon": 8},
    }
    (tmp_path / "experiments" / "own.yaml").write_text(yaml.safe_dump(preset))
    for name, count in (("boot", 200), ("shirt", 190)):
        _images(tmp_path / "images" / name, count)
    monkeypatch.setenv("TERRINE_ROOT", str(tmp_path))
    return tmp_path


def _images(folder, count, mode="L"):
    folder.mkdir(parents=True, exist_ok=True)
    drawn = np.random.default_rng(len(folder.name)).integers(0, 256, (count, 10, 12), dtype=np.uint8)
    for number, pixels in enumerate(drawn):
        suffix = "tif" if mode == "CMYK" else "png"
        Image.fromarray(pixels).convert(mode).save(folder / f"{folder.name}{mode[0]}{number:03}.{suffix}")


def _table_of_groups(project, groups):
    rows = (f"{kind}/{kind}L{n:03}.png,{kind},p{n % groups}" for kind in ("boot", "shirt") for n in range(190))
    (project / "images" / "table.csv").write_text("\n".join(["path,label,group", *rows]))


SUMMED = ["aggregation.mechanism=gradients", "backbone.projection=50"]


def _check(*options):
    return CliRunner().invoke(app, ["check", *options], env={"COLUMNS": "100"})


def test_it_shows_records_classes_files_images_votes_and_price_and_leaves_nothing_behind(project):
    (project / "images" / "boot" / "scan.dcm").write_bytes(b"DICM")
    (project / "images" / "boot" / "Thumbs.db").write_bytes(b"x")
    before = sorted(project.rglob("*"))
    result = _check()
    said = " ".join(result.stdout.split())
    assert result.exit_code == 0, said
    for part in (
        "315 for training, 75 for testing",
        "the smallest is shirt",
        "1 .dcm",
        "1 Thumbs.db",
        "390 of 12 x 10 L",
        "all become 8 x 8, colour",
        "account clinic: budget ε = 8, nothing spent so far; this run costs up to ε = 4",
        "min on two cores",
        "docs/which-epsilon.md",
        "lacks about.description, about.purpose",
        "All images are grey",
    ):
        assert part in said, part
    assert sorted(project.rglob("*")) == before
    assert _check("--set", "aggregation.epsilon=5").exit_code == 0
    named = _check("clinic-a", "--preset", "own", "--set", "ledger.account=others")
    assert "account others" in named.stdout, named.output
    assert [path.name for path in (project / "experiments").iterdir()] == ["own.yaml"]


def test_groups_that_protect_nobody_and_files_that_cannot_be_opened_are_told(project):
    _table_of_groups(project, groups=60)
    notes = inspect_run(project, derive(project, "own", ["data.path=images/table.csv"])).notes
    assert any(re.search(r"\d+ groups\..*To protect people: privacy.unit=group", note) for note in notes)
    labels = ["transcription.protect=labels", "transcription.annotation={epsilon: 2, sigma: null}"]
    notes = inspect_run(
        project, derive(project, "own", ["data.path=images/table.csv", *TRANSCRIBED[:1], *labels])
    ).notes
    assert any("protects the label of one record" in note and "privacy.unit=group" not in note for note in notes)
    (project / "images" / "boot" / "page.png").write_text("<html>")
    (said,) = inspect_run(project, "own").refusals
    (project / "data" / "private" / "site").mkdir(parents=True)  # so that records would be compared
    assert inspect_run(project, "own").refusals == [said]
    assert said.startswith("1 of 391 inspected files cannot be used and make a run fail. Repair or remove them: ")
    assert "page.png (is not an image that Pillow can identify)" in said
    assert _check().exit_code == 1


def test_a_file_that_is_cut_off_and_copies_under_other_names_are_found(project):
    """A header is whole where the pixels are not; so some files are decoded in full."""
    shutil.rmtree(project / "images")
    for number, name in enumerate(("boot", "shirt")):
        (project / "images" / name).mkdir(parents=True)
        for place in range(60):
            pixels = np.random.default_rng([number, place]).integers(0, 256, (12, 10), dtype=np.uint8)
            Image.fromarray(pixels).save(project / "images" / name / f"{name}{place:02}.png")
    found = inspect_run(project, "own")
    assert not any("cop" in note for note in found.notes + found.refusals)
    victim = project / "images" / "boot" / "boot07.png"
    whole = victim.read_bytes()
    for place in (1, 2):
        (project / "images" / "shirt" / f"again{place}.png").write_bytes(whole)
    victim.write_bytes(whole[: len(whole) // 2])
    found = inspect_run(project, "own")
    assert any(str(victim) in sentence and "(is damaged: " in sentence for sentence in found.refusals)
    assert any(note.startswith("1 file is an exact copy of another under another name") for note in found.notes)
    victim.write_bytes(whole)
    found = inspect_run(project, "own")
    assert found.refusals == []
    assert any(note.startswith("2 files are exact copies of others under other names") for note in found.notes)


def test_one_class_and_classes_written_in_two_ways_are_told(project):
    (project / "images" / "shirt").rename(project / "images" / "Boot ")
    assert any("'Boot ' and 'boot' look like two spellings" in note for note in inspect_run(project, "own").notes)
    shutil.rmtree(project / "images" / "Boot ")
    assert any("There is only one class, 'boot'" in sentence for sentence in inspect_run(project, "own").refusals)


def test_columns_of_a_table_that_tell_rows_apart_are_refused(project):
    lines = [f"{n % 50},w{n % 7},2026-01-{n % 28 + 1:02},p{n},{'yes' if n % 2 else 'no'}" for n in range(2000)]
    (project / "rows.csv").write_text("\n".join(["age,ward,day,mrn,died", *lines]))
    preset = {
        "data": {"name": "table", "path": "rows.csv", "target": "died", "public_fraction": 0.2},
        "backbone": {"kind": "columns"},
        "ledger": {"account": "clinic", "epsilon": 8},
    }
    (project / "experiments" / "rows.yaml").write_text(yaml.safe_dump(preset))
    (said,) = inspect_run(project, "rows").stops
    assert re.match(r"Column 'mrn' contains \d+ different words in \d+ public rows", said)
    assert "declare it as data.id or data.group" in said
    assert not inspect_run(project, derive(project, "rows", ["data.id=mrn", "data.classes=[no, yes]"])).stops


def test_what_columns_are_taken_for_is_told(project):
    lines = [f"{40 + n % 30},{n % 2},one,,w{n % 7},m{n},{n % 2}" for n in range(2000)]
    (project / "rows.csv").write_text("\n".join(["pressure,smokes,site,note,ward,mrn,died", *lines]))
    preset = {
        "data": {"name": "table", "path": "rows.csv", "target": "died", "public_fraction": 0.2, "id": "mrn"},
        "backbone": {"kind": "columns"},
        "ledger": {"account": "clinic", "epsilon": 8},
    }
    (project / "experiments" / "rows.yaml").write_text(yaml.safe_dump(preset))
    said = " ".join(_check("--preset", "rows").stdout.split())
    assert "numbers: pressure, smokes; words: ward; constant: site; empty: note; no features: died, mrn" in said


def test_a_table_that_was_released_about_under_another_account_is_refused_at_first_look(project):
    lines = [f"{n % 50},w{n % 7},{'yes' if n % 2 else 'no'}" for n in range(2000)]
    (project / "rows.csv").write_text("\n".join(["age,ward,died", *lines]))
    preset = {
        "data": {
            "name": "table",
            "path": "rows.csv",
            "target": "died",
            "public_fraction": 0.2,
            "classes": ["no", "yes"],
        },
        "privacy": {"units": 1000},
        "backbone": {"kind": "columns"},
        "ledger": {"account": "clinic", "epsilon": 8},
    }
    (project / "experiments" / "rows.yaml").write_text(yaml.safe_dump(preset))
    run = Run(project, "rows", resolve_auto(project, "rows"))
    survey = inspect_run(project, "rows").survey
    (release,) = list_releases(run, task=task_from_survey(run, survey))
    people = people_in(run, survey.dataset)
    release_at_price(run, release.identity, release.worst_case, make_noise(run, release.kind), lambda: {}, data=people)
    another = derive(project, "rows", ["ledger.account=second", "teachers.ridge=0.2"])
    (said,) = inspect_run(project, another).stops
    assert "of these records were part of releases under another account" in said
    assert not any("another account" in said for said in inspect_run(project, "rows").stops)


def test_an_account_of_another_unit_or_budget_is_refused_in_the_words_of_the_ledger(project):
    _table_of_groups(project, groups=60)
    settings = ["data.path=images/table.csv", "aggregation.epsilon=6"]
    resolve_auto(project, derive(project, "own", settings))
    for change, said in (
        (["privacy.unit=group", "aggregation.epsilon=8"], "Releases of this account protect each record"),
        (["ledger.epsilon=9"], "The account has a budget of ε=8"),
    ):
        stops = inspect_run(project, derive(project, "own", [*settings, "privacy.anyway=true", *change])).stops
        assert [sentence for sentence in stops if sentence.startswith(said)], stops
    assert not inspect_run(project, derive(project, "own", settings)).stops


def test_one_record_per_person_is_compared_with_the_groups(project):
    _table_of_groups(project, groups=60)
    settings = ["data.path=images/table.csv", "aggregation.epsilon=6"]
    stated = derive(project, "own", [*settings, "about.one_per_person=true"])
    assert any("training records belong to" in stop for stop in inspect_run(project, stated).stops)
    for change in ("about.one_per_person=false", "privacy.anyway=true", "privacy.unit=group"):
        stops = inspect_run(project, derive(project, stated, [change])).stops
        assert not [stop for stop in stops if "training records belong to" in stop]


def test_images_that_another_account_released_about_are_refused_at_first_look(project):
    resolve_auto(project, "own")
    second = derive(project, "own", ["ledger.account=second"])
    for name, count in ((second, 1), ("own", 0)):
        said = [stop for stop in inspect_run(project, name).stops if "under another account" in stop]
        assert len(said) == count, said


def test_settings_that_make_other_records_public_than_before_are_named_and_private_records_refused(project):
    resolve_auto(project, "own")
    assert inspect_run(project, "own").notes == inspect_run(project, "own").notes
    changed = derive(project, "own", ["data.pool=test", "data.test_fraction=0.5", "queries.sources={pool: 1}"])
    found = inspect_run(project, changed)
    assert [note for note in found.notes if note.startswith("data.test_fraction was 0.2 in an earlier run")]
    assert [note for note in found.notes if note.startswith("data.pool was None in an earlier run")]
    assert [stop for stop in found.stops if "records that this run would publish were private in a release" in stop]


def test_what_another_run_of_the_account_released_is_not_priced_again(project):
    """Though nothing was chosen for this run yet: the count of units is known, and so are the numbers that follow."""
    settings = ["privacy.moments=0.05"]
    first = derive(project, "own", settings)
    queried = inspect_run(project, first)
    run = Run(project, first, resolve_auto(project, first))
    releases = list_releases(run, task=task_from_survey(run, queried.survey))
    for release in releases:
        release_at_price(run, release.identity, release.worst_case, make_noise(run, release.kind), lambda: {})
    other_student = inspect_run(project, derive(project, "own", [*settings, "student.l2=0.1"]))
    (note,) = [note for note in other_student.notes if "another question with the same names" in note]
    assert note.startswith("Edition 1 holds this release for the classes boot, shirt.")
    assert not any("another question" in note for note in queried.notes)
    assert (queried.cost, other_student.cost) == (pytest.approx(4, abs=1e-3), 0)
    assert other_student.spent == other_student.total == pytest.approx(4, abs=1e-3)
    other_teachers = inspect_run(project, derive(project, "own", [*settings, "teachers.ridge=0.2"]))
    assert other_teachers.cost == price(releases[-1].worst_case, 1e-5) < 3.9
    assert not list(project.glob(f"data/private/{other_teachers.run.name}"))


def test_undeclared_classes_of_another_task_are_refused_and_declared_ones_are_priced(project):
    settings = ["data.path=images/one.csv", "privacy.moments=0.05"]
    files = [f"{kind}/{kind}L{number:03}.png" for kind in ("boot", "shirt") for number in range(190)]
    for name, labels in (("one", ("a", "b")), ("two", ("c", "d"))):
        rows = [f"{file},{labels[number % 2]}" for number, file in enumerate(files)]
        (project / "images" / f"{name}.csv").write_text("\n".join(["path,label", *rows]))
    first = derive(project, "own", settings)
    survey = inspect_run(project, first).survey
    run = Run(project, first, resolve_auto(project, first))
    task = task_from_survey(run, survey)
    for release in list_releases(run, task=task):
        about = task if release.kind == "answers" else None
        noise = make_noise(run, release.kind)
        release_at_price(run, release.identity, release.worst_case, noise, lambda: {}, task=about)
    other = [*settings, "data.path=images/two.csv"]
    refused = _check("--preset", "own", *(word for one in other for word in ("--set", one)))
    assert refused.exit_code == 1
    assert isinstance(refused.exception, InputError)
    said = str(refused.exception)
    assert "Account clinic, edition 1, holds releases for the classes a, b. Correct the label; or, if this is" in said
    assert not list(project.glob("data/p*/*/images"))
    declared = inspect_run(project, derive(project, "own", [*other, "data.classes=[c, d]"]))
    answers = next(each.worst_case for each in list_releases(run, task=task) if each.kind == "answers")
    assert declared.cost == price(answers, 1e-5) < 4
    edition = inspect_run(project, derive(project, "own", [*other, "data.edition=second"]))
    assert edition.cost == pytest.approx(4, abs=1e-3)
    assert edition.survey.class_names == ("c", "d")


def test_sums_are_held_against_their_noise(project):
    found = inspect_run(project, derive(project, "own", SUMMED))
    assert found.strength > 1
    assert not found.stops
    declared = inspect_run(project, derive(project, "own", [*SUMMED, "privacy.units=5000"]))
    assert declared.strength == pytest.approx(found.strength * 5000 / found.survey.units(found.run.params.privacy.unit))
    assert "gradients of records are added up with noise" in " ".join(
        _check(*(option for setting in SUMMED for option in ("--set", setting))).stdout.split()
    )


@pytest.mark.parametrize("groups", [20, 70, 150])
def test_auto_sums_groups_of_any_size_and_praises_no_votes(project, groups):
    """Votes used to be taken, and to be called more accurate for groups of eight records or more."""
    _table_of_groups(project, groups)
    settings = ["data.path=images/table.csv", "privacy.unit=group", "backbone.projection=50", "aggregation.epsilon=8"]
    found = inspect_run(project, derive(project, "own", [*settings, "aggregation.mechanism=auto"]))
    params = found.run.params
    assert (params.aggregation.mechanism, params.student.kind, found.plan) == ("gradients", "sums", None)
    units, classes = found.survey.units("group"), len(found.survey.class_names)
    advice = advise(units, classes=classes, features=50, epsilon=8, delta=1e-5, unit="group")
    assert (advice.mechanism, advice.sums) == ("gradients", pytest.approx(found.strength))
    assert advice.useful == (not found.doubts)
    assert not [note for note in found.notes if "votes" in note or "vote " in note]
    votes = inspect_run(project, derive(project, "own", [*settings, "aggregation.mechanism=histogram"]))
    assert votes.run.params.aggregation.mechanism == "histogram"


def test_the_estimated_time_depends_on_the_images_whose_features_are_computed(project):
    """As many as stages were seen to compute: queries for statistics, features and reference images, records once."""
    settings = [*SUMMED, "queries.count=1000", "privacy.moments=0", "backbone.invariance=false"]
    found = inspect_run(project, derive(project, "own", [*settings, "data.size=224", "data.channels=1"]))
    records, tested = found.survey.records
    assert found.minutes == pytest.approx((60 + SHARED * (records + tested + 3000) * image_seconds(224) / 2) / 60)
    moments = inspect_run(project, derive(project, "own", [*settings, "privacy.moments=0.1", "data.size=224"]))
    assert moments.minutes == pytest.approx(
        (60 + SHARED * (2 * records + tested + 3000) * 3 * image_seconds(224) / 2) / 60
    )
    votes = ["queries.count=6000", "backbone.invariance=true", "aggregation.sigma=9", "partition.teachers=20"]
    queried = inspect_run(project, derive(project, "own", [*votes, "student.statistics=current", "data.size=28"]))
    queries = queried.plan.queries
    passed = 6000 + 4000 + 2000 + 2 * 6000 if queries == 6000 else 3 * queries + 2 * queries
    assert queried.minutes == pytest.approx(
        (60 + SHARED * (records + 2 * tested + passed) * 3 * image_seconds(28) / 2) / 60
    )


@pytest.mark.parametrize(("size", "milliseconds"), [(28, 0.75), (64, 6.6), (128, 12.9), (224, 31.4)])
def test_seconds_of_an_image_are_those_that_were_measured(size, milliseconds):
    """docs/operations.md."""
    assert 1000 * image_seconds(size) == pytest.approx(milliseconds, rel=0.1)


def test_images_are_told_to_be_large_where_the_transform_takes_them_for_large():
    assert LARGEST_DENSE == wavelets._LARGEST_DENSE_SIDE
    assert (BORDER, PROJECTION) == (2 * spectra.REACH, 500 * PROJECTION_BATCHES)


def test_groups_that_are_held_out_are_counted(project):
    _table_of_groups(project, 60)
    name = derive(project, "own", ["data.path=images/table.csv", "privacy.unit=group", "aggregation.epsilon=40"])
    survey = inspect_run(project, name).survey
    assert sum(survey.groups) == 60
    assert survey.units("group") == survey.groups[0] > 40


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["partition.teachers=10"], "would learn little but noise"),
        (["aggregation.epsilon=0.1"], "are too few for 2 classes at ε = 0.1"),
        (["ledger.epsilon=3"], "past its budget of ε=3"),
        (["partition.teachers=5000", "aggregation.sigma=9"], "5000 teachers cannot share"),
        ([*SUMMED, "aggregation.epsilon=0.1"], "the signal of the sums would be"),
    ],
)
def test_what_cannot_work_is_refused(project, settings, message):
    found = inspect_run(project, derive(project, "own", settings))
    assert any(message in sentence for sentence in found.stops), found.stops
    options = [option for setting in settings for option in ("--set", setting)]
    assert _check(*options).exit_code == 1


def test_groups_that_the_data_do_not_have_are_refused(project):
    for settings in ([], ["partition.teachers=100", "queries.count=100", "aggregation.sigma=9"]):
        with pytest.raises(SettingError, match=r"privacy\.unit=group, but the data have no groups"):
            inspect_run(project, derive(project, "own", [*settings, "privacy.unit=group"]))


@pytest.mark.parametrize("settings", [["aggregation.epsilon=1"], [*SUMMED, "aggregation.epsilon=0.1"]])
def test_names_of_their_own_are_a_remedy_where_files_of_several_classes_share_them(project, settings):
    name, remedy = derive(project, "own", settings), "This would suffice: unique file names"
    assert not any(remedy in sentence for sentence in inspect_run(project, name).stops)
    for folder in ("boot", "shirt"):
        for number, path in enumerate(sorted((project / "images" / folder).iterdir())):
            path.rename(path.with_name(f"{number:04}.png"))
    (said,) = [sentence for sentence in inspect_run(project, name).stops if "too few" in sentence]
    assert re.search(rf"{remedy}, if all files are different images: 1\d\d have the name of a file in another", said)


def test_doubts_stop_no_run_that_goes_on_anyway(project):
    found = inspect_run(project, derive(project, "own", ["partition.teachers=10", "privacy.anyway=true"]))
    assert found.doubts
    assert not found.stops


def test_an_accuracy_that_would_be_useless_is_refused_before_anything_is_done(project):
    found = inspect_run(project, derive(project, "own", ["evaluation.epsilon=0.01"]))
    assert any("would release an accuracy with an interval of" in sentence for sentence in found.refusals)
    assert not inspect_run(project, derive(project, "own", ["evaluation.epsilon=3", "ledger.epsilon=99"])).refusals


def test_a_class_of_one_image_is_refused_and_a_rare_one_named(project):
    _images(project / "images" / "sandal", 8)
    assert any("'sandal'" in note for note in inspect_run(project, "own").notes)
    _images(project / "images" / "single", 1)
    found = inspect_run(project, derive(project, "own", ["data.test_fraction=0.05"]))
    assert any("'single': one training record" in sentence for sentence in found.stops)


@pytest.mark.parametrize("records", [1, 12])
def test_of_many_numbers_that_are_classes_it_is_said_how_they_are_a_quantity(project, records):
    paths = sorted((project / "images").glob("*/*.png"))
    rows = (f"{path.relative_to(project / 'images')},{30 + number // records}" for number, path in enumerate(paths))
    (project / "images" / "table.csv").write_text("\n".join(["path,label", *rows]))
    said = ["data.path=images/table.csv", "data.test_fraction=0.05", "ledger.epsilon=99", "aggregation.epsilon=40"]
    found = inspect_run(project, derive(project, "own", said))
    hint = r"The label has \d+ different numbers, each one a class\. If it is a quantity, .* data\.bins=\["
    sentences = found.notes if records > 1 else found.stops
    assert any(re.search(hint, sentence) for sentence in sentences), sentences
    binned = inspect_run(project, derive(project, "own", [*said, "data.bins=[0, 200, 500]"]))
    assert not any("If it is a quantity" in sentence for sentence in (*binned.notes, *binned.stops))


def _looked_at(project, *settings):
    return inspect_run(project, derive(project, "own", [*settings, "data.test_fraction=0.05", "ledger.epsilon=99"]))


def _weak(project, *settings):
    """Return the notes about weak classes, and the classes with their signals."""
    found = _looked_at(project, *settings)
    assert not found.stops
    return [note for note in found.notes if note.startswith("The noise at ")], weak_classes(found)


def test_a_class_that_the_noise_hides_is_named_with_a_remedy_that_suffices(project):
    _images(project / "images" / "sandal", 20)
    (note,), _ = _weak(project, "aggregation.epsilon=8")
    # A class that is rare beside the others is answered too seldom at any ε.
    assert re.search(r"Remedy: about \d\d records of each, or merge each with another class", note)
    (summed,), _ = _weak(project, *SUMMED, "aggregation.epsilon=1")
    assert re.search(r"below 1: 'sandal' \(\d+ records, 0\.\d+\)\. .* Remedy: about \d\d records of each", summed)
    _images(project / "images" / "sandal", 40)
    (note,), weak = _weak(project, "aggregation.epsilon=3")
    found = re.fullmatch(
        r"The noise at ε = 3 hides 1 class, whose signal is below 32: 'sandal' \((\d+) records, ([\d.]+)\)\. .* "
        r"Remedy: ε = ([\d.]+), about \d+ records of each, .*",
        note,
    )
    records, strength, epsilon = map(float, found.groups())
    assert records <= 40
    assert weak == {"sandal": pytest.approx(strength, abs=0.5)}
    as_many = f"partition.teachers={_looked_at(project, 'aggregation.epsilon=3').plan.teachers}"
    assert _weak(project, as_many, f"aggregation.epsilon={epsilon}") == ([], {})
    assert len(_weak(project, as_many, f"aggregation.epsilon={epsilon / 1.6}")[1]) == 1
    _images(project / "images" / "sandal", 190)
    assert _weak(project, "aggregation.epsilon=3") == ([], {})


@pytest.mark.parametrize("epsilon", [2, 2.5, 4, 8])
def test_classes_of_equal_size_get_the_verdict_of_the_run(project, epsilon):
    found = _looked_at(project, f"aggregation.epsilon={epsilon}", "privacy.anyway=true")
    assert weak_classes(found) == {}
    found.survey.train[:] = found.survey.train.mean()
    found.plan = replace(found.plan, signal=ENOUGH * 1.01)
    assert weak_classes(found) == {}


def test_many_weak_classes_are_one_note(project):
    for number in range(11):
        _images(project / "images" / f"rare{number:02}", 12)
    (note,), weak = _weak(project, "aggregation.epsilon=8")
    assert len(weak) == 11
    assert "hides 11 classes" in note
    assert "and 3 more" in note


def test_the_number_of_teachers_is_that_of_the_run(project):
    before = inspect_run(project, "own")
    params = resolve_auto(project, "own")
    low, high = before.teachers  # four standard deviations apart
    assert 2 * low - high <= params.partition.teachers <= 2 * high - low
    other = inspect_run(project, derive(project, "own", ["student.l2=0.1"]))  # the units have been counted
    assert (other.plan.teachers, other.teachers) == (params.partition.teachers, None)


def test_unreadable_files_in_class_folders_are_left_out_if_asked(project):
    (project / "images" / "boot" / "page.png").write_text("<html>")
    found = inspect_run(project, derive(project, "own", ["data.unreadable=skip"]))
    assert not found.stops
    assert any("are left out (data.unreadable=skip)" in note and "page.png" in note for note in found.notes)


def test_changed_files_of_a_finished_run_are_reported(project):
    run = Run(project, "own", resolve_auto(project, "own"))
    run.folders.private.mkdir(parents=True, exist_ok=True)
    write_json(run.folders.private / SOURCE, scan_files(run))
    assert not any("have changed" in note for note in inspect_run(project, "own").notes)
    _images(project / "images" / "boot", 1, "RGB")
    write_text(run.folders.parameters, as_yaml(run.params.model_dump(mode="json")))
    for name in ("own", derive(project, "own", ["student.l2=0.3"])):  # the second run would get the first one's release
        (note,) = [note for note in inspect_run(project, name).notes if "have changed" in note]
        assert "since run own read them: 390 files then, 391 now" in note
        assert "terrine run own-2 --preset own --set data.edition=2" in note
    other = derive(project, "own", ["ledger.account=second"])
    assert not any("have changed" in note for note in inspect_run(project, other).notes)


def test_the_teachers_that_know_a_class_are_as_many_as_dealing_its_records_finds():
    generator = np.random.default_rng(0)
    for teachers, records in ((200, 37), (50, 400), (1, 3), (20, 0)):
        dealt = [len(np.unique(generator.integers(teachers, size=records))) for _ in range(400)]
        assert teachers_with_class(teachers, records) == pytest.approx(np.mean(dealt), abs=0.5)


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("RGBA", "Transparency is dropped"),
        ("CMYK", "without a colour profile"),
        ("1", "1 bit per pixel"),
        ("I;16", "more than 8 bits per pixel (mode I;16, PROJECT/images/boot/deep.png): choose"),
    ],
)
def test_images_of_other_modes_are_named(project, mode, said):
    if mode == "I;16":
        Image.fromarray(np.full((10, 12), 900, np.uint16)).save(project / "images" / "boot" / "deep.png")
    else:
        _images(project / "images" / "boot", 3, mode)
    found = inspect_run(project, "own")
    assert any(said.replace("PROJECT", str(project)) in sentence for sentence in (*found.notes, *found.stops))


def test_the_shape_of_most_images_is_told_where_they_would_be_stretched(project):
    def told(*settings):
        notes = inspect_run(project, derive(project, "own", list(settings))).notes
        return [re.search(r"data\.size=\[\d+, \d+\]", note)[0] for note in notes if "are stretched" in note]

    assert told("data.size=60") == ["data.size=[55, 66]"]  # they are 12 wide and 10 high
    assert told("data.size=[50, 60]") == told("data.size=60", "data.fit=pad") == []
    for number in range(400):  # an equal number is upright
        Image.new("L", (10, 12)).save(project / "images" / "boot" / f"upright{number:03}.png")
    assert told("data.size=60") == ["data.size=[66, 55]"]
    for number in range(400):
        Image.new("L", (12, 12)).save(project / "images" / "shirt" / f"square{number:03}.png")
    assert told("data.size=60") == []  # no shape is that of most


def test_a_folder_that_is_not_there_is_one_sentence(project):
    with pytest.raises(InputError, match="There is no folder"):
        inspect_run(project, derive(project, "own", ["data.path=nowhere"]))


TRANSCRIBED = [
    "privacy.unit=record",
    "data.channels=1",
    "transcription.iterations=200",
    "transcription.batch=256",
    "transcription.epsilon=30",
    "transcription.annotation.sigma=100",
    "transcription.annotation.top_k=2",
]


def test_a_transcription_is_priced_exactly_and_held_against_its_account_and_the_papers_claim(project):
    def inspected(*more):
        name = derive(project, "own", [*TRANSCRIBED, *more])
        return Run(project, name, resolve(project, name)), inspect_run(project, name)

    run, found = inspected("ledger.epsilon=30")
    exact, paper = price(event_of(section(run.params), 2), 1e-5), claimed(section(run.params), 2)
    assert (found.cost, found.exact, found.claimed, found.stops) == (exact, exact, paper, [])
    said = " ".join(
        _check(*(word for one in [*TRANSCRIBED, "ledger.epsilon=30"] for word in ("--set", one))).stdout.split()
    )
    assert "budget ε = 30, nothing spent so far; this run costs up to ε = 28.84; total ε = 28.84" in said
    assert f"ε = {paper:.4f}, which does not hold; exact: ε = 28.8" in said
    assert any("past its budget of ε=8" in sentence for sentence in inspected()[1].refusals)
    (own,) = inspected("transcription.epsilon=10", "ledger.epsilon=30")[1].refusals
    assert "annotation.sigma to 226.23 or more" in own
    ledger = open_transcribed(run)
    ledger.release(
        **release_terms(run, 2, task_from_survey(run, found.survey)),
        draw=lambda: ({"x": np.zeros(1)}, event_of(section(run.params), 2)),
    )
    _, again = inspected("ledger.epsilon=30")
    assert (again.cost, again.spent, again.exact, again.stops) == (0, found.total, exact, [])


def test_a_public_run_with_too_weak_a_signal_is_announced_not_refused(project, capsys):
    preset = {
        "data": {"name": "digits", "public_benchmark": True},
        "partition": {"teachers": 140},
        "queries": {"count": 8000},
        "aggregation": {"sigma": 78},
    }
    (project / "experiments" / "public.yaml").write_text(yaml.safe_dump(preset))
    for epsilon, weak in ((1.5, True), (8, False)):
        name = derive(project, "public", [f"aggregation.epsilon={epsilon}"])
        found = inspect_run(project, name)
        assert (WEAK_BUT_PUBLIC in found.notes, found.stops) == (weak, [])
        refuse(project, name)
        assert ("the run is not refused" in " ".join(capsys.readouterr().out.split())) == weak
