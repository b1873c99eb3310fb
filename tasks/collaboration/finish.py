"""`terrine party finish`: train the student, distribute it, evaluate it at each party, and release one accuracy.

The student and its statement are public, one file that may be sent. A party's evaluation on its own held-out split is
private. An accuracy over all parties is a separate release on the same services (`tasks.parties.accuracy_terms`):
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
from tasks.collaboration.local_training import open_run, prepare_run
from tasks.collaboration.student_training import learn
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
from tasks.pipeline.mlflow_runs import attempt, open_experiment
from tasks.reports.accuracy import released_accuracy
from tasks.reports.language import LANGUAGES
from tasks.runtime.accounts import SIGNING
from tasks.runtime.run import Run
from tasks.runtime.store import atomic_folder, link, read_json, write_json, write_text
from tasks.serving.export import export_folder
from tasks.serving.pages import ARCHIVE, STATEMENT, STUDENT, clear_pages, pack, unpacked, write_pages
from terrine.deployment.manifest import MANIFEST
from terrine.deployment.model import check_student
from terrine.errors import InputError
from terrine.files import file_digest
from terrine.privacy.noised_accuracy import shares_of_units
from terrine.privacy.statement import read_statement

log = logging.getLogger("terrine.party")

PUBLIC = "signing-key.pem"
"""The public half of the student party's signing key, beside the archive."""


@dataclass(frozen=True)
class Finished:
    """Result of `terrine party finish` at one party.

    Attributes:
        folder: Folder of the student.
        archive: student party: the file for the other parties.
        evaluation: teacher party, private: evaluation.json of its held-out split.
        released: student party: the accuracy over all parties, with noise, once it is released.
        key: student party: fingerprint of the key that signed the statement.
    """

    folder: Path
    archive: Path | None = None
    evaluation: dict[str, Any] | None = None
    released: dict[str, Any] | None = None
    key: str | None = None


def finish_student(config: PartyConfig, epsilon: float | None, export: Path | None, *, sign: bool = False) -> Finished:
    """Train the student on a student party's answers, log it, and write the file for the other parties.

    Args:
        config: Configuration of the student party.
        epsilon: Price of one accuracy over all parties. The accuracy is registered at the service, and published when
            all parties have reported.
        export: Folder for an ONNX export.
        sign: Whether to write the pages for ethics boards and sign everything.
    """
    run = learn(config)
    folders, archive, key = run.folders, run.root / ARCHIVE, None
    measured, released = file_digest(folders.student / MANIFEST), released_accuracy(folders)
    if released is None or released["measured"] != measured:
        released = None
        write_json(folders.accuracy, {"accuracy": None, "summary": "The parties have released no accuracy."})
    clear_pages(folders.release)
    if sign:
        from tasks.serving.attestations import sign_for_tools
        from terrine.deployment.signature import fingerprint, public_pem, signing_key

        private = signing_key(config.folder / SIGNING)
        write_pages(folders.release, LANGUAGES, private)
        sign_for_tools(folders.release, config.folder / SIGNING)
        write_text(archive.with_name(PUBLIC), public_pem(private.public_key()).decode())
        key = fingerprint(private.public_key())
    if epsilon is not None:
        terms = AccuracyTerms.of(config.terms, epsilon, measured)
        _register(config, terms)
        own = config.with_terms(terms)
        about = stored_answers(own)
        if about is not None and about["guardian"] is not None:
            found = about_accuracy(run, terms.described, stored_release(about, terms, read_arrays(own)))
            released = found | {"parties": about["guardian"]["counted"], "measured": measured}
            write_json(folders.accuracy, released)
    pack(folders.release, archive)
    _log(config, run, released)
    if export is not None:
        export_folder(folders.student, export, [], ["onnx"])
    return Finished(folders.student, archive=archive, released=released, key=key)


def _register(config: PartyConfig, terms: Terms) -> None:
    """Have a party's service take part in another release."""
    store = Store(config.state)
    store.register(terms.digest, terms.public())
    store.close()


def finish_guardian(config: PartyConfig, student: Path, epsilon: float) -> None:
    """Register the release of one accuracy of this student at the guardian's service.

    Raises:
        BudgetError: The account cannot pay for the accuracy.
    """
    with _student_of(student, config.terms) as place:
        terms = AccuracyTerms.of(config.terms, epsilon, file_digest(place / STUDENT / MANIFEST))
    PaidRelease(config.with_terms(terms)).was_made()
    _register(config, terms)


def finish_teacher(config: PartyConfig, student: Path, epsilon: float | None, export: Path | None) -> Finished:
    """Evaluate the student on a teacher party's held-out split; the figures stay in its folder.

    Args:
        config: Configuration of the teacher party.
        student: The file of the student party, or a folder with its content.
        epsilon: Price of one accuracy over all parties, for which the party uploads its sums.
        export: Folder for an ONNX export.

    Raises:
        InputError: The student belongs to another collaboration.
        ArtefactError: The file was changed.
    """
    name = config.name
    assert config.own is not None
    held = config.terms.teachers[name]
    run = open_run(config.own, config.terms, held)
    if not (run.folders.dataset / "manifest.json").is_file():  # a party that did not report can still evaluate
        prepare_run(config.own, config.terms, held)
    with _student_of(student, config.terms) as place, atomic_folder(run.folders.release) as folder:
        link(place / STUDENT, folder / STUDENT)
        for file in STATEMENT:
            if (place / file).is_file():
                shutil.copyfile(place / file, folder / file)
    dataset, theirs = read_dataset(run.folders), check_student(run.folders.student)["class_names"]
    if list(dataset.class_names) != list(theirs):
        raise InputError(
            f"The student has the classes {', '.join(map(str, theirs))}, in this order, and the data of {name} have "
            f"{', '.join(map(str, dataset.class_names))}. Have the student made with the agreed names."
        )
    evaluate_student.fn(run)
    if epsilon is not None:
        terms = AccuracyTerms.of(config.terms, epsilon, file_digest(run.folders.student / MANIFEST))
        shared = terms.shared(shares_of_units(right_answers(run, dataset), held_out_units(run, dataset)))
        submit(config.with_terms(terms), lambda _: lambda number, weights: shared)
    if export is not None:
        export_folder(run.folders.student, export, [], ["onnx"])
    return Finished(run.folders.student, evaluation=read_json(run.folders.evaluation))


@contextlib.contextmanager
def _student_of(given: Path, terms: Terms) -> Iterator[Path]:
    """Yield the student party's file, unpacked and checked to be complete and to belong to these terms."""
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


def _log(config: PartyConfig, run: Run, released: dict[str, Any] | None) -> None:
    """Log the student with its cost to MLflow; a failure is only logged."""
    statement, terms, folders = read_statement(run.folders.statement), config.terms, run.folders

    def work() -> str:
        import mlflow

        open_experiment(run)
        release = statement["release_id"]
        before = mlflow.search_runs(filter_string=f"tags.release = '{release}'", output_format="list")
        with mlflow.start_run(before[0].info.run_id if before else None, run_name=terms.called) as active:
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

    identity = attempt(run, work, "The student is complete without it; log it by running terrine party finish again.")
    if identity is not None:
        log.info("logged to MLflow as %s", identity)
