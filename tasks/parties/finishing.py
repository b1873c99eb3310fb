"""After the session: the student party makes the student and hands it on, and each party sees how well it serves there.

The student and its statement are public. They are one file that may be mailed. What a party measures on its own test
split is private and stays with it; where it wants to tell how good the student is, it releases one accuracy with noise,
charged to its own account, and the student party takes the mean of those of all parties.
"""

from __future__ import annotations

import logging
import math
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.config.params import Params
from tasks.config.values import digest
from tasks.parties.config import GuardianLedger, PartyConfig
from tasks.parties.learning import learn, params_of
from tasks.parties.training import own_params
from tasks.pipeline.dataset import read_dataset
from tasks.pipeline.evaluate import evaluate_student
from tasks.pipeline.tracking import attempt
from tasks.reports.accuracy import shown_accuracy
from tasks.reports.statement_page import read_statement
from tasks.runtime.run import Run
from tasks.runtime.store import Folders, atomic_file, atomic_folder, link, read_json, write_json
from tasks.serving.export import export_folder
from tasks.serving.pages import STATEMENT
from terrine.deployment.model import check_student
from terrine.errors import ArtefactError, InputError, SettingError
from terrine.privacy.noised_accuracy import CONFIDENCE

log = logging.getLogger("terrine.party")

ARCHIVE = "student.zip"
_OWN, _STUDENT = "own", "student"


@dataclass(frozen=True)
class Finished:
    """What came of it.

    Attributes:
        folder: Of the student.
        archive: student party: the file to be handed on.
        accuracy: teacher party: private, on its own test split, in batches.
        served: teacher party: private, the same one image at a time, as it is served; None where that is no other.
        images: teacher party: how many it was measured on.
        released: The accuracy with noise that was released, or the mean of those of the parties.
    """

    folder: Path
    archive: Path | None = None
    accuracy: float | None = None
    served: float | None = None
    images: int | None = None
    released: dict[str, Any] | None = None


def finish_student(config: PartyConfig, accuracies: Sequence[Path], export: Path | None) -> Finished:
    """Make the student of a student party's answers, log it, and write the file that the other parties are sent.

    accuracies: files accuracy.json that parties have released. Raises what `learn` does, and InputError for files that
    are no such thing or are about another student.
    """
    folder = learn(config)
    assert config.learn is not None
    folders = Folders(config.learn.work, _STUDENT)
    released = mean_accuracy([_released(path, config) for path in accuracies]) if accuracies else None
    write_json(folders.accuracy, released or {"accuracy": None, "summary": "No party has released an accuracy."})
    archive = config.learn.work / ARCHIVE
    _write_archive(folders.release, archive)
    _log(config, folders, released)
    if export is not None:
        export_folder(folder, export, [], ["onnx"])
    return Finished(folder, archive=archive, released=released)


def finish_teacher(config: PartyConfig, student: Path, epsilon: float | None, export: Path | None) -> Finished:
    """See how well the student serves a teacher party's own test split; the figures stay in its folder.

    Args:
        config: Of the party.
        student: What the student party handed on: the file, or a folder with the same in it.
        epsilon: Price of one accuracy with noise, which may be published; None releases none.
        export: Where the student is exported to, if it is to be.

    Raises:
        SettingError: a party without data of its own, or without a ledger where an accuracy is to be released.
        InputError, ArtefactError: a student that is of another collaboration, or was changed on its way.
    """
    name = config.own_credentials().name
    if config.own is None:
        raise SettingError(f"{name} gives a file of votes and has no `own` data here to test the student on.")
    held = config.terms.teachers[name]
    run = Run(config.own.work, _OWN, _params(config, held, epsilon))
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
    released = read_json(run.folders.accuracy)
    if export is not None:
        export_folder(run.folders.student, export, [], ["onnx"])
    return Finished(
        run.folders.student,
        accuracy=found["accuracy"],
        served=found["served"]["accuracy"] if "served" in found else None,
        images=found["images"],
        released=None if released["accuracy"] is None else released,
    )


def mean_accuracy(released: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean over all units of what parties have released: post-processing, and nothing is charged.

    released: contents of accuracy.json. Each is known to within its own interval, and noises are independent.
    """
    units = sum(one["units"] for one in released)
    if not units > 0:
        raise InputError("The parties' accuracies are noise alone: no mean can be taken.")
    accuracy = sum(one["accuracy"] * one["units"] for one in released) / units
    plus_minus = math.sqrt(sum((one["plus_minus"] * one["units"]) ** 2 for one in released)) / units
    epsilon = max(one["epsilon"] or math.inf for one in released)
    about = f"ε ≤ {epsilon:g} each" if math.isfinite(epsilon) else "NOT PRIVATE: some noise was replayed"
    return {
        "accuracy": accuracy,
        "plus_minus": plus_minus,
        "confidence": CONFIDENCE,
        "units": units,
        "parties": len(released),
        "summary": f"On what {len(released)} parties held out the student is right in "
        f"{shown_accuracy(accuracy, plus_minus)} of cases: the mean of one figure with noise from each, which charged "
        f"it to its own account ({about}), and the interval that noise leaves at {CONFIDENCE:.0%}.",
    }


def _params(config: PartyConfig, held: int, epsilon: float | None) -> Params:
    assert config.own is not None
    params = own_params(config.own, config.terms, held)
    if epsilon is None:
        return params
    if (own := config.ledger) is None:
        raise SettingError(
            "An accuracy is charged to the party's own account: name it with `ledger` in party.yaml. Nothing was "
            "released."
        )
    return params.model_copy(
        update={
            "evaluation": params.evaluation.model_copy(update={"epsilon": epsilon}),
            "aggregation": params.aggregation.model_copy(update={"delta": config.terms.delta}),
            "ledger": params.ledger.model_copy(update=_ledger(own)),
        }
    )


def _ledger(own: GuardianLedger) -> dict[str, Any]:
    if not own.named:
        raise SettingError("ledger.named=false is for trials: a party's own account has a name.")
    return {"url": own.url, "key": own.key, "store": own.store, "account": own.account, "epsilon": own.epsilon}


def _released(path: Path, config: PartyConfig) -> dict[str, Any]:
    found = read_json(path)
    numbers = ("accuracy", "plus_minus", "units")
    if not isinstance(found, dict) or not all(isinstance(found.get(name), int | float) for name in numbers):
        raise InputError(f"{path} is no accuracy that a party has released: {numbers} are to be numbers.")
    if found.get("delta") != config.terms.delta or found.get("unit") != config.terms.unit:
        raise InputError(f"{path} is for another δ or unit than the terms say: it is of another collaboration.")
    return found


def _write_archive(release: Path, archive: Path) -> None:
    files = [release / name for name in STATEMENT]
    files += sorted(path for path in (release / _STUDENT).rglob("*") if path.is_file())
    with atomic_file(archive) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in files:
            # No time in it: the same student is the same file.
            packed.writestr(zipfile.ZipInfo(str(file.relative_to(release))), file.read_bytes())


def _take_student(given: Path, folders: Folders, config: PartyConfig) -> None:
    """Lay down what the student party handed on, once it is found to be whole and of these terms."""
    with tempfile.TemporaryDirectory() as temporary:
        place = given
        if given.is_file():
            place = Path(temporary)
            try:
                with zipfile.ZipFile(given) as packed:
                    packed.extractall(place)  # which keeps to the folder, whatever names it holds
            except (zipfile.BadZipFile, OSError) as error:
                raise ArtefactError(f"{given} is damaged ({error}). Get it again from the student party.") from error
        statement = place / STATEMENT[0]
        if not (place / _STUDENT).is_dir() or not statement.is_file():
            raise InputError(f"{given} holds no student with its statement. Give {ARCHIVE} of the student party.")
        check_student(place / _STUDENT)
        if read_statement(statement)["partition_digest"] != digest(config.terms.public(), 64):
            raise InputError(
                f"{given} is the student of other terms than this party's, or of another edition. Get the right one, "
                "or compare terms.yaml with the student party's."
            )
        with atomic_folder(folders.release) as folder:
            link(place / _STUDENT, folder / _STUDENT)
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
        name = f"collaboration {terms.edition}".strip()
        with mlflow.start_run(run_name=name) as active:
            mlflow.log_params({key: value for key, value in terms.public().items() if not isinstance(value, dict)})
            mlflow.set_tags({"noise": statement["noise"], "release": statement["release_id"]})
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
