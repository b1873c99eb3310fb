"""`terrine party finish`: train the student, distribute it, evaluate it at each party, and release one accuracy.

The student and its statement are public, one file that may be sent. What a party measures on its own held-out split is
private. An accuracy over all parties is a release of its own on the same services (`tasks.parties.accuracy_terms`):
guardian and student party register its terms, and each teacher party uploads its sums.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.artefacts.records import read_dataset
from tasks.collaboration.local_training import run_of
from tasks.collaboration.student_training import learn, params_of
from tasks.parties.accuracy_terms import AccuracyTerms
from tasks.parties.answers import read_arrays, stored_answers
from tasks.parties.config import PartyConfig
from tasks.parties.ledgers import PaidRelease
from tasks.parties.release import stored_release
from tasks.parties.store import Store
from tasks.parties.submit import submit
from tasks.parties.terms import Terms
from tasks.pipeline.evaluate import evaluate_student
from tasks.pipeline.figures.released_accuracy import about_accuracy, held_out_units, right_answers
from tasks.pipeline.mlflow_runs import attempt
from tasks.reports.accuracy import released_accuracy
from tasks.reports.language import LANGUAGES
from tasks.runtime.accounts import SIGNING
from tasks.runtime.run import Run
from tasks.runtime.store import Folders, atomic_folder, link, read_json, write_json, write_text
from tasks.serving.export import export_folder
from tasks.serving.pages import ARCHIVE, STATEMENT, STUDENT, clear_pages, pack, unpacked, write_pages
from terrine.deployment.manifest import MANIFEST
from terrine.deployment.model import check_student
from terrine.errors import ArtefactError, InputError, SettingError
from terrine.files import file_digest
from terrine.privacy.noised_accuracy import shares_of_units
from terrine.privacy.statement import read_statement

log = logging.getLogger("terrine.party")

PUBLIC = "signing-key.pem"
"""The public half of the key that a student party signs its statement with, beside the file."""


@dataclass(frozen=True)
class Finished:
    """Result of `finish`.

    Attributes:
        folder: The student.
        archive: student party: the file for the other parties.
        accuracy: teacher party, private: on its held-out split, as the student is served.
        in_batches: The same in batches, or None if that is no other figure.
        images: Number of images of this figure.
        released: student party: the accuracy over all parties, with noise, once it is released.
        key: student party: fingerprint of the key that signed the statement.
    """

    folder: Path
    archive: Path | None = None
    accuracy: float | None = None
    in_batches: float | None = None
    images: int | None = None
    released: dict[str, Any] | None = None
    key: str | None = None


def finish_student(config: PartyConfig, epsilon: float | None, export: Path | None, *, sign: bool = False) -> Finished:
    """Train the student on a student party's answers, log it, and write the file for the other parties.

    Args:
        config: The student party.
        epsilon: Price of one accuracy over all parties, which is registered at the service, and published once all
            parties have reported.
        export: Folder for an ONNX export.
        sign: Whether to write the pages for ethics boards and sign everything.
    """
    folder = learn(config)
    assert config.learn is not None
    folders, archive = Folders(config.learn.work, STUDENT), config.learn.work / ARCHIVE
    measured, released = file_digest(folders.student / MANIFEST), released_accuracy(folders)
    if released is None or released["measured"] != measured:
        released = None
        write_json(folders.accuracy, {"accuracy": None, "summary": "The parties have released no accuracy."})
    clear_pages(folders.release)
    key = _sign(config, folders.release, archive.with_name(PUBLIC)) if sign else None
    if epsilon is not None:
        terms = AccuracyTerms.of(config.terms, epsilon, measured)
        _register(config, terms)
        about = stored_answers(config.with_terms(terms))
        if about is not None and about["guardian"] is not None:
            released = _released(config, folders, terms, about)
            write_json(folders.accuracy, released)
    pack(folders.release, archive)
    _log(config, folders, released)
    if export is not None:
        export_folder(folder, export, [], ["onnx"])
    return Finished(folder, archive=archive, released=released, key=key)


def _sign(config: PartyConfig, release: Path, public: Path) -> str:
    """Write the pages about a release in every language and sign all; return the key's fingerprint."""
    from terrine.deployment.signature import fingerprint, public_pem, signing_key

    key = signing_key(config.folder / SIGNING)
    write_pages(release, LANGUAGES, key)
    write_text(public, public_pem(key.public_key()).decode())
    return fingerprint(key.public_key())


def _register(config: PartyConfig, terms: Terms) -> None:
    """Have a party's service take part in another release."""
    store = Store(config.state)
    store.register(terms.digest, terms.public())
    store.close()


def _released(config: PartyConfig, folders: Folders, terms: AccuracyTerms, about: dict[str, Any]) -> dict[str, Any]:
    """Return the content of accuracy.json."""
    release = stored_release(about, terms, read_arrays(config.with_terms(terms)))
    run = Run(folders.root, folders.run, params_of(folders, config))
    found = about_accuracy(run, terms.described, release)
    return found | {"parties": about["guardian"]["counted"], "measured": terms.measured}


def finish_guardian(config: PartyConfig, student: Path, epsilon: float) -> Finished:
    """Register the release of one accuracy of this student at the guardian's service.

    Raises:
        BudgetError: The account cannot pay for it.
    """
    with _student_of(student, config.terms) as place:
        terms = AccuracyTerms.of(config.terms, epsilon, file_digest(place / STUDENT / MANIFEST))
    PaidRelease(config.with_terms(terms)).was_made()
    _register(config, terms)
    return Finished(student)


def finish_teacher(config: PartyConfig, student: Path, epsilon: float | None, export: Path | None) -> Finished:
    """Evaluate the student on a teacher party's held-out split; the figures stay in its folder.

    Args:
        config: The teacher party.
        student: The file of the student party, or a folder with its content.
        epsilon: Price of one accuracy over all parties, for which the party uploads its sums.
        export: Folder for an ONNX export.

    Raises:
        SettingError: The party has no own data.
        InputError: The student belongs to another collaboration.
        ArtefactError: It was changed, or the party's data were not read yet.
    """
    name = config.name
    if config.own is None:
        raise SettingError(f"{name} gives a file of votes and has no `own` data here to test the student on.")
    run = run_of(config.own, config.terms, config.terms.teachers[name])
    if not (run.folders.dataset / "manifest.json").is_file():
        raise ArtefactError(f"{name} has not read its data yet. Run first: terrine party submit.")
    with _student_of(student, config.terms) as place, atomic_folder(run.folders.release) as folder:
        link(place / STUDENT, folder / STUDENT)
        for file in STATEMENT:
            if (place / file).is_file():
                shutil.copyfile(place / file, folder / file)
    mine, theirs = read_dataset(run.folders).class_names, check_student(run.folders.student)["class_names"]
    if list(mine) != list(theirs):
        raise InputError(
            f"The student has the classes {', '.join(map(str, theirs))}, in this order, and the data of {name} have "
            f"{', '.join(map(str, mine))}. Have the student made with the agreed names."
        )
    evaluate_student.fn(run)
    found = read_json(run.folders.evaluation)
    if epsilon is not None:
        terms = AccuracyTerms.of(config.terms, epsilon, file_digest(run.folders.student / MANIFEST))
        dataset = read_dataset(run.folders)
        shared = terms.shared(shares_of_units(right_answers(run, dataset), held_out_units(run, dataset)))
        submit(config.with_terms(terms), lambda _: lambda number, weights: shared)
    if export is not None:
        export_folder(run.folders.student, export, [], ["onnx"])
    return Finished(
        run.folders.student,
        accuracy=found["accuracy"],
        in_batches=found.get("in_batches", {}).get("accuracy"),
        images=found["images"],
    )


@contextlib.contextmanager
def _student_of(given: Path, terms: Terms) -> Iterator[Path]:
    """Yield the unpacked file of the student party, checked to be whole and of these terms."""
    with unpacked(given) as place:
        statement = place / STATEMENT[0]
        if not (place / STUDENT).is_dir() or not statement.is_file():
            raise InputError(f"{given} holds no student with its statement. Give {ARCHIVE} of the student party.")
        check_student(place / STUDENT)
        if read_statement(statement)["partition_digest"] != terms.digest:
            raise InputError(
                f"{given} is the student of other terms than this party's, or of another edition. Get the right one, "
                "or compare terms.yaml with the student party's."
            )
        yield place


def _log(config: PartyConfig, folders: Folders, released: dict[str, Any] | None) -> None:
    """Log the student with its cost to MLflow; a failure is only logged."""
    run = Run(folders.root, folders.run, params_of(folders, config))
    statement, terms = read_statement(folders.statement), config.terms

    def work() -> str:
        import mlflow

        mlflow.set_tracking_uri(run.database(run.params.tracking.uri))
        mlflow.set_experiment(run.params.tracking.experiment)
        name, release = f"collaboration {terms.edition}".strip(), statement["release_id"]
        before = mlflow.search_runs(filter_string=f"tags.release = '{release}'", output_format="list")
        with mlflow.start_run(before[0].info.run_id if before else None, run_name=name) as active:
            mlflow.log_params({key: value for key, value in terms.public().items() if not isinstance(value, dict)})
            mlflow.set_tags({"noise": statement["noise"], "release": release})
            names = ("epsilon", "epsilon_guaranteed", "delta", "teachers", "queries", "answered")
            metrics = {name: statement[name] for name in names}
            if released is not None:
                metrics["accuracy_released"] = released["accuracy"]
                metrics["accuracy_released_plus_minus"] = released["plus_minus"]
            mlflow.log_metrics({name: value for name, value in metrics.items() if value is not None})
            mlflow.log_artifacts(str(folders.student), "release/student")
            for file in (*(folders.release / name for name in STATEMENT), folders.accuracy):
                mlflow.log_artifact(str(file), "release")
            return str(active.info.run_id)

    identity = attempt(run, work, "The student is complete without it; log it by running terrine party finish again")
    if identity is not None:
        log.info("logged to MLflow as %s, at %s", identity, run.database(run.params.tracking.uri))
