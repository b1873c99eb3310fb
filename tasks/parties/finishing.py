"""After the session: the student party makes the student and hands it on, and each party sees how well it serves there.

The student and its statement are public, one file that may be mailed. What a party measures on its own test split is
private. Where all want to tell how good the student is, they meet once more (`measuring`).
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.artefacts.records import read_dataset
from tasks.parties.agreement.accuracy import AccuracyTerms
from tasks.parties.agreement.terms import Terms
from tasks.parties.answers import read_arrays
from tasks.parties.config import PartyConfig
from tasks.parties.host import CollaborationError
from tasks.parties.learning import learn, params_of
from tasks.parties.measuring import measure, meeting
from tasks.parties.release import stored_release
from tasks.parties.training import run_of
from tasks.pipeline.evaluate import evaluate_student
from tasks.pipeline.figures.released_accuracy import about_accuracy, held_out_units, right_answers
from tasks.pipeline.mlflow_runs import attempt
from tasks.reports.accuracy import released_accuracy
from tasks.reports.statement_page import languages, read_statement
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

log = logging.getLogger("terrine.party")

PUBLIC = "signing-key.pem"
"""The public half of the key that a student party signs with (`SIGNING`, among its credentials), beside the file."""


@dataclass(frozen=True)
class Finished:
    """What came of it: the student's folder and, at the student party, the file to be handed on.

    accuracy, in_batches, images: teacher party, private: on its own test split, as the student is served; the same in
    batches (None if that is no other); of how many. released: student party: the accuracy of all parties, with noise.
    charged: guardian: what that cost. key: student party: the fingerprint of the key that it signed with.
    """

    folder: Path
    archive: Path | None = None
    accuracy: float | None = None
    in_batches: float | None = None
    images: int | None = None
    released: dict[str, Any] | None = None
    charged: float | None = None
    key: str | None = None


def finish_student(config: PartyConfig, epsilon: float | None, export: Path | None, *, sign: bool = False) -> Finished:
    """Make the student of a student party's answers, log it, and write the file that the other parties are sent.

    epsilon: where it is given, the parties meet once more, and release one accuracy at this price (`measure`). sign:
    write the pages for ethics boards as well, and sign them, the statement and the student.
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
    pack(folders.release, archive)
    if epsilon is not None:
        log.info("%s is there for the others, who need it now", archive)
        released = _learn_accuracy(config, folders, AccuracyTerms.of(config.terms, epsilon, measured))
        write_json(folders.accuracy, released)
        pack(folders.release, archive)
    _log(config, folders, released)
    if export is not None:
        export_folder(folder, export, [], ["onnx"])
    return Finished(folder, archive=archive, released=released, key=key)


def _sign(config: PartyConfig, release: Path, public: Path) -> str:
    """Write the pages about a release in every language and sign all; return the key's fingerprint."""
    from terrine.deployment.signature import fingerprint, public_pem, signing_key

    key = signing_key(config.credentials / SIGNING)
    write_pages(release, languages(), key)
    write_text(public, public_pem(key.public_key()).decode())
    return fingerprint(key.public_key())


def _learn_accuracy(config: PartyConfig, folders: Folders, terms: AccuracyTerms) -> dict[str, Any]:
    """Meet the others, and return what may be published: the content of accuracy.json."""
    about = measure(config, terms)
    if about["guardian"] is None:
        raise CollaborationError(
            "The accuracy is here, and the guardian has not said what it cost. Run this again at both: nothing is "
            "charged twice."
        )
    release = stored_release(about, terms, read_arrays(meeting(config, terms)))
    run = Run(folders.root, folders.run, params_of(folders, config))
    found = about_accuracy(run, terms.described, release)
    return found | {"parties": about["guardian"]["counted"], "measured": terms.measured}


def finish_guardian(config: PartyConfig, student: Path, epsilon: float) -> Finished:
    """Meet the others, who measure this student, and charge its accuracy to the account. Raises what `measure` does."""
    with _student_of(student, config.terms) as place:
        terms = AccuracyTerms.of(config.terms, epsilon, file_digest(place / STUDENT / MANIFEST))
    return Finished(student, charged=measure(config, terms)["epsilon"])


def finish_teacher(config: PartyConfig, student: Path, epsilon: float | None, export: Path | None) -> Finished:
    """See how well the student (the file that was handed on, or a folder with the same in it) serves a teacher party's
    own test split; the figures stay in its folder.

    epsilon: price of one accuracy of all parties, for which they meet once more (`measure`). export: where the student
    is exported to. Raises SettingError for a party without data of its own, InputError and ArtefactError for a student
    that is of another collaboration, or was changed on its way.
    """
    name = config.own_credentials().name
    if config.own is None:
        raise SettingError(f"{name} gives a file of votes and has no `own` data here to test the student on.")
    held = config.terms.teachers[name]
    run = run_of(config.own, config.terms, held)
    if not (run.folders.dataset / "manifest.json").is_file():
        raise ArtefactError(f"{name} has not read its data yet. Run first: terrine party teach.")
    _take_student(student, run.folders, config)
    mine, theirs = read_dataset(run.folders).class_names, check_student(run.folders.student)["class_names"]
    if list(mine) != list(theirs):
        raise InputError(
            f"The student tells {_listed(theirs)}, in this order, and the data of {name} have {_listed(mine)}. Rename "
            "the classes so that they sort alike, or have the student made with the agreed names."
        )
    evaluate_student.fn(run)
    found = read_json(run.folders.evaluation)
    if epsilon is not None:
        terms = AccuracyTerms.of(config.terms, epsilon, file_digest(run.folders.student / MANIFEST))
        dataset = read_dataset(run.folders)
        shares = shares_of_units(right_answers(run, dataset), held_out_units(run, dataset))
        log.info("%s is right in %.1f %% of cases here; that is private", ARCHIVE, 100 * found["accuracy"])
        measure(config, terms, shares)
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
    """What the student party handed on, unpacked, once it is found to be whole and of these terms."""
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


def _take_student(given: Path, folders: Folders, config: PartyConfig) -> None:
    """Lay down what the student party handed on."""
    with _student_of(given, config.terms) as place, atomic_folder(folders.release) as folder:
        link(place / STUDENT, folder / STUDENT)
        for name in STATEMENT:
            if (place / name).is_file():
                shutil.copyfile(place / name, folder / name)


def _log(config: PartyConfig, folders: Folders, released: dict[str, Any] | None) -> None:
    """Log the student with what it cost to MLflow; that it fails is warned of, and all is there without it."""
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


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(str(name) for name in names)
