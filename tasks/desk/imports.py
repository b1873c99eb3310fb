"""Statements for models trained by another library: from its accountant's state and the operator's facts, one release.

The state is read without running code in it: JSON, or a checkpoint that PyTorch loads with `weights_only`. The release
is charged to an account of the ledger like Terrine's own. The ID of the import depends on the account, the edition, the
training and the model's files, so the same import is charged once. With `release.approval=required`, the import waits
for an approval like a run, and is then repeated.

Formal guarantee: ε is computed from noise, sampling and steps as stated, under both neighbouring relations
(`terrine.privacy.training`). Only the operator vouches that clipping, noise and sampling were as stated.
"""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.config.presets import FOLDERS, NAME, Preset, parameter_file, with_assignments
from tasks.config.values import as_yaml, digest
from tasks.reports.language import LANGUAGES
from tasks.runtime.accounts import approval_of, open_account, site_key, site_signing_file, site_signing_key
from tasks.runtime.approval import Proposal, refuse_uncovered, require_approval
from tasks.runtime.code_digest import code_version
from tasks.runtime.locks import making
from tasks.runtime.releases import Release, missing_about
from tasks.runtime.run import Run
from tasks.serving.attestations import sign_for_tools
from tasks.serving.pages import FIGURES, MODEL, clear_pages, write_pages
from terrine.errors import BudgetError, InputError, SettingError
from terrine.files import file_digest, write_text
from terrine.privacy.accounting.pricing import price
from terrine.privacy.facts import Facts, Record
from terrine.privacy.ledger.site_key import release_identity
from terrine.privacy.statement import PrivacyStatement, Unit, write_statement
from terrine.privacy.training import Sampling, Training, import_dp_event, really_sampled, sampled_share

_LARGEST_TEXT = 2**26
_CHECKPOINT, _FLOWER = "privacy_accountant_state_dict", "compositions"
_FLOWER_SAMPLING: dict[str, Sampling] = {
    "poisson": "poisson",
    "without-replacement": "fixed",
    "no-amplification": "all",
}


@dataclass(frozen=True)
class Stated:
    """Facts that the accountant's state does not contain.

    Attributes:
        name: Name of the release.
        account: Name of the ledger's account.
        budget: ε of the account over all releases.
        unit: Protected unit: `record`, or `group` if each clipped contribution is that of a person or institution.
        record: Kind of record.
        delta: δ.
        edition: Edition of the data.
        files: The model's files.
    """

    name: str
    account: str
    budget: float
    unit: Unit
    record: Record
    delta: float
    edition: str
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Imported:
    """Result of an import: folder, statement, and the signing key's fingerprint."""

    folder: Path
    statement: PrivacyStatement
    key: str | None


def read_state(path: Path, sampling: Sampling | None) -> Training:
    """Return the training that a file describes.

    Args:
        path: A checkpoint of Opacus, the JSON of a `dp_accounting.DpEvent` (`to_named_tuple`), the state of Flower's
            accountant, or parameters of Flower's central DP, both JSON.
        sampling: How batches were actually drawn.

    Raises:
        InputError: The file has another format, or its training cannot be priced.
    """
    try:
        if zipfile.is_zipfile(path):
            return _opacus(_load(path), sampling)
        with path.open("rb") as file:
            state = json.loads(file.read(_LARGEST_TEXT))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path} is neither a PyTorch checkpoint nor JSON ({error}). Pickles are never read: save the checkpoint "
            "with torch.save, or an event with json.dump(event.to_named_tuple(), file)."
        ) from error
    if isinstance(state, list):
        return import_dp_event(state, sampling)
    if isinstance(state, dict) and _FLOWER in state:
        return _flower(state, sampling)
    if isinstance(state, dict) and "num_sampled_clients" in state:
        return _flower_strategy(state, sampling)
    if isinstance(state, dict) and "history" in state:
        return _opacus(state, sampling)
    raise InputError(f"{path} is not the state of an accountant that Terrine reads (docs/handing-over.md).")


def _load(path: Path) -> Any:
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, OSError) as error:
        raise InputError(
            f"{path} cannot be read without running code in it. Save it again with PrivacyEngine.save_checkpoint, or "
            "give --noise-multiplier, --sample-rate and --steps."
        ) from error


def _opacus(state: Any, sampling: Sampling | None) -> Training:
    """Read the accountant of a checkpoint; its history cannot be shorter than the optimizer's."""
    held = state.get(_CHECKPOINT, state) if isinstance(state, Mapping) else {}
    history = held.get("history") if isinstance(held, Mapping) else None
    if not isinstance(history, Sequence) or not history:
        raise InputError(f"The checkpoint has no history of an Opacus accountant ({_CHECKPOINT}).")
    training = Training("opacus", really_sampled("poisson", sampling), tuple(map(tuple, history)))
    optimizer = state.get("optimizer_state_dict") or {}
    counts = [float(one.get("step", 0)) for one in (optimizer.get("state") or {}).values()]
    if max(counts, default=0) > training.steps:
        raise InputError(
            f"The history of the accountant has {training.steps:,} steps, and the optimizer made {max(counts):,.0f}: "
            "it is truncated. Use the checkpoint of the whole training."
        )
    return training


def _flower(state: Mapping[str, Any], sampling: Sampling | None) -> Training:
    """Read the state of Flower's accountant."""
    try:
        assumed = _FLOWER_SAMPLING[state["config"]["sampling_method"]]
        phases = tuple(
            (
                part["event"]["noise_multiplier"],
                sampled_share(part["event"]["sample_size"], part["event"]["population_size"]),
                part["count"],
            )
            for part in state[_FLOWER]
        )
    except (LookupError, TypeError) as error:
        raise InputError("The state of Flower's accountant is damaged or of another version.") from error
    # Flower's default sampler draws a fixed number of clients, even if its analysis assumed otherwise.
    really = "fixed" if assumed == "all" and sampling == "fixed" else really_sampled(assumed, sampling)
    return Training("flower", really, phases)


def _flower_strategy(state: Mapping[str, Any], sampling: Sampling | None) -> Training:
    """Read the parameters of Flower's central DP; its sampler draws a fixed number of clients."""
    try:
        share = sampled_share(state["num_sampled_clients"], state["num_clients"])
        phases = ((state["noise_multiplier"], share, state["num_rounds"]),)
    except KeyError as error:
        raise InputError(f"The parameters of Flower's central DP lack {error.args[0]}.") from error
    return Training("flower", really_sampled("fixed", sampling), phases)


def import_training(root: Path, training: Training, stated: Stated, assignments: Sequence[str]) -> Imported:
    """Charge a training to an account, and write and sign its statement.

    Args:
        root: Folder of the project.
        training: The training.
        stated: Facts that its state does not contain.
        assignments: Settings, each as `section.key=value`, such as the operator's statement.

    Raises:
        ApprovalNeeded: The import needs an approval (`tasks.runtime.approval`).
        BudgetError: The account cannot pay for the training.
        InputError: A model file is missing, or a run of this name exists.
    """
    run = _run(root, stated, assignments)
    files = _digests(stated.files)
    with making(root, run.name), _budget_explained():
        event, added = training.events(stated.delta)
        described = {**training.describe(), "files": files}
        content = {"training": training.describe(), "model": sorted(files.values())}
        ledger, account = open_account(run)
        identity = release_identity(
            site_key(run),
            account=account,
            edition=stated.edition,
            release="imported",
            parameters=content,
            noise={"kind": "not observed"},
        )
        if ledger.committed(identity):
            refuse_uncovered(run, identity)
        write_text(run.folders.parameters, as_yaml(run.params.model_dump(mode="json")))
        told = f"a model that another library trained in {training.steps:,} steps: {', '.join(files)}"
        phases = [
            f"{steps:,} steps with noise multiplier {noise:g} and sampling rate {rate:g}"
            for noise, rate, steps in training.phases
        ]
        told += f". As stated: batches {training.sampling}, each contribution clipped, {'; '.join(phases)}"
        releases = [Release("imported", identity, event)]
        expected = "unknown: Terrine did not observe the training"
        require_approval(run, Proposal(ledger, account, releases, {}, stated.unit, stated.delta, added, expected, told))
        release = ledger.release(
            dataset=account,
            release_id=identity,
            run=run.name,
            worst_case=event,
            delta=stated.delta,
            noise_kind="secure",
            draw=lambda: ({"training": np.frombuffer(bytes.fromhex(digest(content, 64)), np.uint8)}, event),
        )
        statement = PrivacyStatement(
            run=run.name,
            release_id=identity,
            dataset=account,
            unit=stated.unit,
            trust_model="central",
            event=event,
            event_added=added,
            delta=stated.delta,
            delta_slack=None,
            epsilon_budget=price(event, stated.delta),
            epsilon_dataset=release.epsilon_total,
            epsilon_account=release.guarantee,
            noise="not observed",
            mechanism=described,
            teachers=None,
            queries=0,
            queried=0,
            answered=0,
            answered_per_class=(),
            partition_digest=None,
            partition_disjoint=None,
            public_inputs=(),
            facts=Facts(stated.record, about=run.params.about),
            code_version=" ".join(f"{name} {value}" for name, value in code_version(root).items()),
            approval=approval_of(run, release),
        )
        return _write(run, statement, stated.files)


@contextmanager
def _budget_explained() -> Iterator[None]:
    try:
        yield
    except BudgetError as error:
        raise BudgetError(
            f"{error} A budget over releases that are chosen one by one needs one measure, which the first of them "
            "fixes. If that was Gaussian, a sampled step counts like one on all units: import into an account before "
            "other releases, or raise its budget (terrine ledger --budget)."
        ) from error


def _run(root: Path, stated: Stated, assignments: Sequence[str]) -> Run:
    if not NAME.fullmatch(stated.name) or stated.name in FOLDERS or parameter_file(root, stated.name).is_file():
        raise SettingError(
            f"--release {stated.name}: a name has at most 60 lower-case letters, digits and hyphens, and no run or "
            "preset has it. Choose another one."
        )
    settings = {
        "ledger.account": stated.account,
        "ledger.epsilon": stated.budget,
        "privacy.unit": stated.unit,
        "aggregation.delta": stated.delta,
        "data.edition": stated.edition,
        "data.public_benchmark": False,
        "aggregation.sigma": 1,  # required in a run, but not used
    }
    own = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    _, params = with_assignments(root, Preset(stated.name, "", {}), [*assignments, *own])
    run = Run(root, stated.name, params)
    if missing := missing_about(params):
        raise SettingError(
            f"A signed statement needs {', '.join(missing)}. Add them: --set about.purpose='...' Nothing was charged."
        )
    if run.folders.public_parameters.is_file():  # an import has none
        raise InputError(f"There is a run {stated.name}. Give the import another --release. Nothing was charged.")
    return run


def _digests(paths: Sequence[Path]) -> dict[str, str]:
    """Return SHA-256 digests of the model's files by name."""
    if not paths:
        raise InputError("There is no file of the model. Name one with --model. Nothing was charged.")
    found: dict[str, str] = {}
    for path in paths:
        if not path.is_file() or path.name in found:
            raise InputError(f"{path} is not a file, or its name occurs twice. Nothing was charged.")
        found[path.name] = file_digest(path)
    return dict(sorted(found.items()))


def _write(run: Run, statement: PrivacyStatement, paths: Sequence[Path]) -> Imported:
    folder = run.folders.release
    clear_pages(folder) if folder.is_dir() else folder.mkdir(parents=True)
    shutil.rmtree(folder / MODEL, ignore_errors=True)
    (folder / MODEL).mkdir()
    for path in paths:
        shutil.copyfile(path, folder / MODEL / path.name)
    write_statement(folder / FIGURES, statement)
    written = write_pages(folder, LANGUAGES, site_signing_key(run))
    sign_for_tools(folder, site_signing_file(run))
    return Imported(folder, statement, written.key)
