"""Promotion of a registered student to `champion`, the version that users of MLflow should load.

A version becomes `candidate` when it is registered. It becomes `champion` only if this site has signed its statement,
the release passes the checks of `terrine verify`, and the ledger agrees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.pipeline.mlflow_runs import create_database
from tasks.reports.accuracy import gap_warning, served_accuracy
from tasks.runtime.accounts import ledger_before, site_signing_key
from tasks.runtime.locks import lock_path
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, read_table
from tasks.serving.mlflow_model import log_student, quiet
from tasks.serving.pages import CARD, SIGNATURE, SIGNATURES, pages_in
from tasks.serving.verification import refuse_wrong, verify_statement
from terrine.deployment.manifest import MANIFEST, check_seal
from terrine.deployment.signature import fingerprint, read_signature
from terrine.errors import ArtefactError, LedgerError, SettingError
from terrine.files import file_digest
from terrine.locks import locked
from terrine.privacy.accounting.events import counts, from_json
from terrine.privacy.statement import read_statement

if TYPE_CHECKING:
    from mlflow import MlflowClient

CHAMPION = "champion"
_LONGEST = 5000
"""Largest length of a description in MLflow, in characters."""


@dataclass(frozen=True)
class Promoted:
    """Versions of the new and the previous champion; and, privately, the accuracy as served and a warning about it."""

    version: str
    before: str | None
    accuracy: float
    warning: str | None


def promote(run: Run) -> Promoted:
    """Make a finished run's student the champion of the registered model with the run's name.

    Raises:
        SettingError: If the run is NOT PRIVATE.
        ArtefactError: The statement is not signed by this site, the release does not verify, or MLflow has another
            student.
        LedgerError: If the ledger is damaged or contradicts the statement.
    """
    import mlflow

    folder = run.folders.release
    if not (folder / SIGNATURE).is_file():
        raise ArtefactError(
            f"The statement of {run.name} is not signed. Sign it first: terrine statement {run.name} --sign"
        )
    refuse_wrong(verify_statement(folder, fingerprint(site_signing_key(run).public_key())))
    statement = read_statement(run.folders.statement)
    if not statement["private"]:
        raise SettingError(f"{run.name} is not promoted. {statement['summary']}")
    check_ledger(run, statement)
    create_database(run)
    with locked(lock_path(run.root, "tracking")), quiet():
        mlflow.set_tracking_uri(run.database(run.params.tracking.uri))
        client = mlflow.MlflowClient()
        if (version := _registered(run, client)) is None:
            _register(run)
            version = _registered(run, client)
        if version is None:
            raise ArtefactError(f"MLflow registered no version of {run.name}. Check tracking.uri and promote it again.")
        held = Path(mlflow.artifacts.download_artifacts(f"models:/{run.name}/{version}"), "artifacts", "student")
        check_seal(held)
        if file_digest(held / MANIFEST) != file_digest(run.folders.student / MANIFEST):
            raise ArtefactError(f"Version {version} of {run.name} in MLflow holds another student than the run's.")
        model = client.get_registered_model(run.name)
        before = model.aliases.get(CHAMPION)
        card = "\n\n".join([*served_accuracy(run), (folder / CARD).read_text(encoding="utf-8")])
        if len(card) > _LONGEST:
            ending = f"\n\n… The whole card is in the run's artefacts, release/{CARD}."
            card = card[: _LONGEST - len(ending)] + ending
        client.update_model_version(run.name, version, card)
        client.set_model_version_tag(run.name, version, "signed_by", read_signature(folder / SIGNATURE).key)
        identity = client.get_model_version(run.name, version).run_id
        for name in (*(name for name in SIGNATURES if (folder / name).is_file()), *pages_in(folder)):
            client.log_artifact(identity, str(folder / name), "release")
        client.set_registered_model_alias(run.name, CHAMPION, version)
    evaluation = read_json(run.folders.evaluation)
    warning = gap_warning(evaluation)
    return Promoted(version, None if before is None else str(before), evaluation["accuracy"], warning)


def check_ledger(run: Run, statement: Mapping[str, Any]) -> None:
    """Raise LedgerError unless the run's ledger is intact and contains this release at this cost."""
    ledger = ledger_before(run)
    if ledger is None:
        raise LedgerError(f"There is no ledger here that could agree with the statement of {run.name}.")
    ledger.verify()
    identity = statement["release_id"]
    rows = {row.kind: row for row in ledger.rows() if row.release_id == identity}
    known = {row.dataset for row in ledger.rows() if identity in (row.release_id, row.content.get("of"))}
    if "commit" not in rows:
        raise LedgerError(f"The ledger has not committed the release {identity[:16]} that the statement is about.")
    if statement["dataset"] not in known or rows["reserve"].content["noise"] != statement["noise"]:
        raise LedgerError(f"The ledger knows the release {identity[:16]} of another account, or with other noise.")
    charged, stated = counts(from_json(rows["commit"].content["event"])), counts(from_json(statement["event"]))
    if any(stated.get(part, 0) < count for part, count in charged.items()):
        raise LedgerError(f"The ledger charged more for the release {identity[:16]} than the statement says it cost.")
    arrays, answers = ledger.stored(identity), run.folders.answers / "answers.parquet"
    voted = "labels" in arrays and answers.is_file()
    if voted and not np.array_equal(read_table(answers)["label"], arrays["labels"]):
        raise LedgerError(f"The answers in {answers.parent} are not those that the ledger keeps as released.")


def _registered(run: Run, client: MlflowClient) -> str | None:
    """Return the newest version with this student and statement, or None."""
    wanted = {
        "statement_sha256": file_digest(run.folders.statement),
        "student_sha256": file_digest(run.folders.student / MANIFEST),
    }
    found = client.search_model_versions(f"name = '{run.name}'")
    return max((str(one.version) for one in found if wanted.items() <= one.tags.items()), key=int, default=None)


def _register(run: Run) -> None:
    """Register the student under the run's MLflow run."""
    import mlflow

    record: Path = run.folders.private / "tracking.json"
    if not record.is_file():
        raise ArtefactError(f"MLflow does not know {run.name}. Log it first: terrine run {run.name}")
    with mlflow.start_run(run_id=read_json(record)["run_id"]):
        log_student(run)
