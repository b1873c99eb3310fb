"""The report and the release statement: what they show, what they must not show, and that they load nothing."""

import base64
import io
import re
import shlex
import shutil
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

from tasks.config.presets import derive, reproduce_command
from tasks.pipeline.figures.subgroups import by_subgroup
from tasks.pipeline.graph import MAIN
from tasks.pipeline.report import contact_sheets, write_report
from tasks.reports.statement_page import correct_guesses, render_technical_page
from tasks.runtime.parameters import write_parameters
from tasks.runtime.store import read_json, write_array, write_json, write_table
from terrine.measures import measures
from terrine.privacy.accounting.events import ComposedEvent, LaplaceEvent, RepeatedEvent, threshold_test, vote_answer
from terrine.privacy.facts import Examples, Facts
from terrine.privacy.statement import PrivacyStatement, PublicInput, released_per_class
from terrine.queries import Queries

BLOOD = ("basophil", "eosinophil", "erythroblast", "immature granulocytes (myelocytes, metamyelocytes)", "lymphocyte")


def make_statement(labels, classes, *, queried, noise="secure", event=None, epsilon_total=None, **changes):
    answered = int((labels >= 0).sum())
    event = event or RepeatedEvent(vote_answer(25.0), answered)
    content = {
        "run": "small",
        "release_id": "5e" * 32,
        "dataset": "da" * 32,
        "unit": "record",
        "trust_model": "central",
        "event": event,
        "delta": 1e-5,
        "delta_slack": 1e-14,
        "epsilon_budget": 8.0,
        "epsilon_dataset": 8.5,
        "noise": noise,
        "mechanism": {"mechanism": "histogram", "sigma": 25.0},
        "teachers": 50,
        "queries": len(labels),
        "queried": queried,
        "answered": answered,
        "answered_per_class": released_per_class(labels, classes),
        "partition_digest": "fa" * 32,
        "partition_disjoint": True,
        "public_inputs": (PublicInput("query images", "drawn by gaussian with seed 0", "1a" * 32),),
        "facts": Facts("image", (Examples("programs", len(labels)),), held_out=True),
        "code_version": "terrine 0.1.0",
    }
    return PrivacyStatement(**{**content, **changes}).to_dict()


def make_run(
    root,
    *,
    class_names=BLOOD,
    size=28,
    channels=1,
    noise="secure",
    mechanism="histogram",
    queries=60,
    queried=48,
    params=None,
):
    """Write the artefacts of a run, by hand, into an empty project folder."""
    generator = np.random.default_rng(7)
    classes = len(class_names)
    settings = {"sigma": 25} if mechanism != "confident" else {"threshold": 30, "sigma1": 20, "sigma2": 10}
    (root / "experiments").mkdir()
    (root / "params.yaml").write_text("run: small\n")
    preset = {
        "description": "a small run",
        "data": {"public_benchmark": True, "size": size, "channels": channels},
        "queries": {"count": queries, "batch": 20, "sources": {"gaussian": 1, "stylegan": 2}},
        "aggregation": {"mechanism": mechanism, "noise": noise, **settings},
        **(params or {}),
    }
    (root / "experiments" / "small.yaml").write_text(yaml.safe_dump(preset))
    run = write_parameters(root, "small")
    folders = run.folders

    images = generator.integers(0, 256, (queries, channels, size, size), dtype=np.uint8)
    third = queries // 3
    shards = []
    for name, part in (("gaussian", images[:third]), ("stylegan", images[third:])):
        write_array(folders.images / f"{name}.npy", part)
        shards.append({"file": f"{name}.npy", "kind": name, "count": len(part), "sha256": "0"})
    batches = [
        {"kind": "gaussian", "source_start": 0, "first": 0, "count": third},
        {"kind": "stylegan", "source_start": 0, "first": third, "count": queries - third},
    ]
    write_json(folders.images / "manifest.json", {"shards": {"queries": shards}, "batches": batches, "seed": 0})

    votes = generator.integers(0, classes, (queries, 50))
    histograms = np.array([np.bincount(row, minlength=classes) for row in votes])
    labels = np.where(np.arange(queries) < queried, histograms.argmax(axis=1), -1)
    if mechanism == "confident":
        labels[::3] = -1
    rounds = np.where(np.arange(queries) < queried, 0, -1)
    table = {"query": np.arange(queries), "round": rounds, "answered": labels >= 0, "label": labels}
    if mechanism == "histogram":
        noisy = histograms + generator.normal(0, 25, histograms.shape)
        noisy[queried:] = np.nan
        table |= {f"count_{number}": noisy[:, number] for number in range(classes)}
    write_table(folders.answers / "answers.parquet", pd.DataFrame(table))
    manifest = {"mechanism": mechanism, "teachers": 50, "class_names": list(class_names), "queries": queries}
    manifest |= {"queried": queried, "answered": int((labels >= 0).sum()), "noise": noise}
    write_json(folders.answers / "manifest.json", manifest)
    write_json(folders.statement, make_statement(labels, classes, queried=queried, noise=noise))
    write_json(folders.private / "errors.json", {"without_noise": None, "wrong": []})

    confusion = generator.integers(0, 4, (classes, classes)) + 30 * np.eye(classes, dtype=np.int64)
    per_class = [
        {"class": name, "count": int(row.sum()), "accuracy": float(row[number] / row.sum())}
        for number, (name, row) in enumerate(zip(class_names, confusion, strict=True))
    ]
    accuracy = float(confusion.trace() / confusion.sum())
    write_json(
        folders.evaluation,
        {"accuracy": accuracy, "per_class": per_class, "confusion": confusion, "notice": "Evaluation"},
    )
    write_array(folders.accounting / "histograms.npy", histograms)
    figures = {"notice": "PRIVATE", "consensus_mean": 0.61803, "epsilon_data_dependent": 3.14159, "order": None}
    write_json(folders.accounting / "figures.json", {**figures, "votes_per_class": histograms.sum(axis=0)})
    for number, stage in enumerate(MAIN.names):
        write_json(
            folders.timings / f"{stage}.json", {"stage": stage, "seconds": number + 0.5, "memory_mb": 100 + number}
        )
    return run


class Page(HTMLParser):
    """Resources, texts and sections of a page."""

    VOID = frozenset({"meta", "img", "br", "link", "input", "hr"})

    def __init__(self, html):
        super().__init__()
        self.addresses, self.tags, self.texts = [], [], []
        self.open = []
        self.feed(html)
        assert not self.open, f"unclosed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in self.VOID:
            self.open.append((tag, dict(attributes).get("class") or ""))

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        values = dict(attributes)
        loading = ("src", "href", "xlink:href", "srcset", "data", "action", "poster", "background")
        self.addresses += [values[name] for name in loading if name in values]

    def handle_endtag(self, tag):
        opened, _ = self.open.pop()
        assert opened == tag, f"<{opened}> is closed by </{tag}>"

    def handle_data(self, data):
        self.texts.append((data, {name for _, names in self.open for name in names.split()}))

    def places(self, text):
        """Return the classes around each occurrence of a text."""
        return [names for data, names in self.texts if text in data]


def written(run):
    write_report.fn(run)
    return run.folders.report.read_text(encoding="utf-8")


def statement_page(run):
    return render_technical_page(
        read_json(run.folders.statement), read_json(run.folders.answers / "manifest.json")["class_names"]
    )


def embedded(html):
    """Return the pictures inside a page."""
    uris = [address for address in Page(html).addresses if address.startswith("data:")]
    return [Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))) for uri in uris]


def check_offline(html):
    page = Page(html)
    assert not {"script", "link", "iframe", "object", "embed", "base"} & set(page.tags)
    for address in page.addresses:
        assert address.startswith("data:image/png;base64,") or re.fullmatch(r"\.\./[\w./-]+", address), address
    style = html[html.index("<style>") : html.index("</style>")]
    assert "@import" not in style
    assert "url(" not in html
    assert not re.search(r"https?://", html)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run with its report and its statement."""
    run = make_run(tmp_path_factory.mktemp("made"))
    return run, written(run), statement_page(run)


def test_both_pages_load_nothing_name_the_classes_and_have_no_alarm(made):
    run, *pages = made
    for html in pages:
        check_offline(html)
        assert "NOT PRIVATE" not in html
        assert not any("broken" in names for _, names in Page(html).texts)
        for name, count in zip(BLOOD, read_json(run.folders.statement)["answered_per_class"], strict=True):
            assert re.search(
                rf'{re.escape(name)}</span><span class="track">.*?<span class="value">{count}</span>', html
            )


def test_the_report_is_marked_private_and_names_what_may_be_published(made):
    page = Page(made[1])
    first = next(data for data, names in page.texts if data.strip() and "banner" in names)
    assert first == "PRIVATE."
    assert any("private" in names for names in page.places("data/release/small/statement.html"))
    assert "../../release/small/statement.html" in page.addresses
    for text in ("0.618", "3.142", "share of the teachers that voted for the winning class", "Votes per class"):
        places = page.places(text)
        assert places, text
        assert all("private" in names for names in places), text
    assert any("private" in names for names in page.places("do not publish"))
    assert any("evaluation" in names for names in page.places("not covered by ε"))
    assert all("evaluation" in names for names in page.places("Confusion matrix"))


def test_the_headline_numbers_are_those_of_the_artefacts(made):
    run, html, _ = made
    statement, evaluation = read_json(run.folders.statement), read_json(run.folders.evaluation)
    for text in (
        f"{100 * evaluation['accuracy']:.2f} %",
        f"{statement['epsilon']:.4f}",
        f"{statement['epsilon_dataset']:.4f}",
        "1e-5",
        "of 60 queries",
        "aggregation.sigma",
        "terrine run --preset small",
    ):
        assert text in html, text


def test_the_tile_is_of_the_student_as_served_and_a_wide_gap_is_warned_of(tmp_path):
    run = make_run(tmp_path)
    evaluation = read_json(run.folders.evaluation)
    assert "far less accurate" not in written(run)
    in_batches = {"statistics": "current", "accuracy": evaluation["accuracy"] + 0.031}
    write_json(run.folders.evaluation, evaluation | {"in_batches": in_batches})
    html = written(run)
    tile = html[html.index("Accuracy of the student as served") :][:400]
    served, batches = (f"{100 * each['accuracy']:.2f} %" for each in (evaluation, in_batches))
    assert tile.index(served) < tile.index(f"in batches, under current statistics, {batches}")
    assert "far less accurate" in html
    assert "aggregation.mechanism=gradients" in html


def test_figures_for_rare_classes_stand_with_their_intervals(tmp_path):
    run = make_run(tmp_path, class_names=("healthy", "ill"))
    labels = np.arange(80) // 70
    chances = np.c_[1 - 0.4 * labels, 0.4 * labels] + np.linspace(0, 0.3, 80)[:, None] * [-1, 1]
    found = measures(labels, chances, ["healthy", "ill"], units=np.arange(80) // 2)
    sites = {"site": np.where(np.arange(80) % 4 < 2, "north", "south")}
    own = by_subgroup(sites, labels, chances.argmax(axis=1), None)
    write_json(run.folders.evaluation, read_json(run.folders.evaluation) | {"measures": found, "subgroups": own})
    page = Page(written(run))
    for row in (found["balanced_accuracy"], found["by_class"][1]["sensitivity_at_specificity"]):
        assert any("evaluation" in names for names in page.places(f"{row['value']:.3f} ({row['low']:.3f} to"))
    assert page.places("between test sets of as many groups")
    assert page.places("at 90 % specificity")
    assert page.places("Accuracy by subgroup")
    assert page.places("south")


def test_replayed_noise_is_announced_on_both_pages(tmp_path):
    run = make_run(tmp_path, noise="replay")
    for html in (written(run), statement_page(run)):
        page = Page(html)
        assert any("broken" in names for names in page.places("NOT PRIVATE"))
        assert "may be published" not in html.replace("nothing may be published", "")
        assert "differentially private:" not in html
        assert "times in 100" not in html


def test_names_from_data_are_escaped(tmp_path):
    names = ("<script>alert(1)</script>", 'a"b', "c&d", "<img src=x onerror=y>")
    run = make_run(tmp_path, class_names=names, params={"description": "<script>evil</script>"})
    for page in (Page(written(run)), Page(statement_page(run))):
        assert "script" not in page.tags
        assert "x" not in page.addresses
        assert page.places("<script>alert(1)</script>")
    assert Page(written(run)).places("<script>evil</script>")


def test_many_classes_make_a_drawn_matrix_with_its_worst_errors_named(tmp_path):
    names = tuple(f"species number {number}" for number in range(150))
    run = make_run(tmp_path, class_names=names)
    html = written(run)
    page = Page(html)
    assert html.count('class="confusion"') == 0
    confusion = np.array(read_json(run.folders.evaluation)["confusion"])
    np.fill_diagonal(confusion, 0)
    true, predicted = np.unravel_index(confusion.argmax(), confusion.shape)
    assert page.places(names[true])
    assert page.places(names[predicted])
    assert (150, 150) in {picture.size for picture in embedded(html)}
    assert len(html) < 3_000_000


@pytest.mark.parametrize(("size", "channels", "shown"), [(8, 1, 8), (28, 3, 28), (320, 3, 160)])
def test_pictures_of_any_size_are_embedded_with_their_pixels(tmp_path, size, channels, shown):
    run = make_run(tmp_path, size=size, channels=channels, queries=6, queried=6)
    pictures = embedded(written(run))
    assert len(pictures) == 6
    assert {picture.size for picture in pictures} == {(shown, shown)}
    assert {picture.mode for picture in pictures} == {"L" if channels == 1 else "RGB"}
    if shown == size:
        original = np.load(run.folders.images / "gaussian.npy")
        stored = {np.asarray(picture).tobytes() for picture in pictures}
        for image in original:
            assert image.transpose(1, 2, 0).tobytes() in stored


def test_a_contact_sheet_shows_what_was_asked_of_its_source_beside_its_own_label():
    """Three batches of two sources; every image is filled with its own number."""
    images = np.repeat(np.arange(30, dtype=np.uint8), 64).reshape(30, 1, 8, 8)
    queries = Queries(images, [np.arange(10), np.arange(10, 20), np.arange(20, 30)], ["a", "b", "a"])
    labels, queried = np.arange(30) % 4, np.arange(30) < 24
    answered = queried & (np.arange(30) % 5 != 0)
    first, second = contact_sheets(queries, answered, np.where(answered, labels, -1), queried, list("wxyz"))
    assert [first[name] for name in ("kind", "queries", "queried", "answered")] == ["a", 20, 14, 11]
    assert [second[name] for name in ("kind", "queries", "queried", "answered")] == ["b", 10, 10, 8]
    assert {picture["query"] for picture in first["pictures"]} == {*range(10), *range(20, 24)}
    for picture in (*first["pictures"], *second["pictures"]):
        query = picture["query"]
        (shown,) = embedded(f'<img src="{picture["uri"]}">')
        assert (np.asarray(shown) == query).all()
        assert picture["label"] == ("wxyz"[labels[query]] if answered[query] else None)


def test_the_command_in_the_report_makes_the_same_run(tmp_path):
    make_run(tmp_path)
    name = derive(
        tmp_path,
        "small",
        ["seed=3", "aggregation.delta=1e-6", "queries.sources={gaussian: 1.5}", "device='cpu'", "student.l2=null"],
    )
    words = shlex.split(reproduce_command(tmp_path, name, local=True))
    assert words[:4] == ["terrine", "run", "--preset", "small"]
    assert words[4::2] == ["--set"] * len(words[5::2])
    assert derive(tmp_path, "small", words[5::2]) == name


def test_a_report_that_goes_into_mlflow_shows_no_path_and_no_account_and_one_at_home_does(tmp_path):
    run = make_run(tmp_path)
    given = ["seed=3", "ledger.account=SecretAccount", "ledger.epsilon=30", "data.name=mnist", "data.root=SecretRoot"]
    for kept_back in (False, True):
        name = derive(tmp_path, "small", [*given, f"tracking.private_metrics={str(not kept_back).lower()}"])
        own = write_parameters(tmp_path, name)
        for zone in ("private", "public", "release"):
            shutil.copytree(getattr(run.folders, zone), getattr(own.folders, zone), dirs_exist_ok=True)
        own = write_parameters(tmp_path, name)
        html = written(own)
        assert "seed=3" in html
        for secret in ("SecretAccount", "SecretRoot"):
            assert (secret in html) == kept_back


def test_a_statement_shows_no_data_dependent_figure(tmp_path):
    run = make_run(tmp_path)
    statement = read_json(run.folders.statement)
    html = render_technical_page(statement, BLOOD)
    for text in ("0.618", "3.1416", "consensus", "data-dependent", "accuracy of the student", "votes per class"):
        assert text not in html.lower()
    # A figure that is not a field of the statement finds no place on the page either.
    assert render_technical_page({**statement, "epsilon_data_dependent": 3.14159}, BLOOD) == html


def test_a_statement_says_unit_neighbours_trust_and_where_inputs_came_from():
    mechanism = {"mechanism": "histogram", "sigma": 25.0, "counted": {"units": 1414, "sigma": 4.8018}}
    statement = make_statement(np.array([0, 1, 1, -1]), 2, queried=3, unit="group", mechanism=mechanism)
    text = re.sub(r"\s+", " ", "".join(data for data, _ in Page(render_technical_page(statement, ["no", "yes"])).texts))
    for part in (
        "one group replaced, added or removed",
        "The operator sees the private data",
        "drawn by gaussian with seed 0",
        statement["release_id"],
        "one patient",
        "3 of 4 answered",
        "1,414 groups, with noise of standard deviation 4.802 (number of units, to choose",
    ):
        assert part in text, part


def test_a_statement_without_answers_has_its_page():
    assert "0 of 4 answered; 4 put to the vote" in render_technical_page(
        make_statement(np.full(4, -1), 3, queried=4), list("abc")
    )


def test_optional_figures_appear_when_they_are_given():
    labels = np.zeros(3, dtype=np.int64)
    html = render_technical_page(
        make_statement(
            labels,
            2,
            queried=3,
            epsilon_tuning=9.25,
            epsilon_claimed=0.125,
            audit_epsilon=0.0625,
            audit_confidence=0.95,
        ),
        ["no", "yes"],
    )
    for text in (">9.25<", ">0.125<", "0.0625", "95\xa0%"):
        assert text in html


def test_the_best_guess_is_bounded_by_simulated_attacks():
    """The optimal attack on a Gaussian mechanism: one bit, shifted by the sensitivity."""
    labels = np.zeros(100, dtype=np.int64)
    event = ComposedEvent((RepeatedEvent(threshold_test(40.0), 200), RepeatedEvent(vote_answer(20.0), 100)))
    bound = correct_guesses(make_statement(labels, 2, queried=100, event=event))
    mu = np.sqrt(200 / 40**2 + 100 * 2 / 20**2)
    generator = np.random.default_rng(0)
    with_record = generator.random(200_000) < 0.5
    seen = with_record * mu + generator.normal(size=200_000)
    right = 100 * np.mean((seen > mu / 2) == with_record)
    assert right - 0.5 < bound < right + 0.7


def test_other_mechanisms_are_bounded_by_their_epsilon():
    labels = np.zeros(1, dtype=np.int64)
    statement = make_statement(
        labels, 2, queried=1, event=LaplaceEvent(sensitivity=1.0, scale=1.0), epsilon_dataset=9.0
    )
    bound = correct_guesses(statement)
    # Guessing whether x + Laplace(1) came from 0 or 1 is right with probability 1 − ½ e^(−1/2).
    assert 100 * (1 - 0.5 * np.exp(-0.5)) <= bound <= 100 * np.e / (1 + np.e) + 0.2
