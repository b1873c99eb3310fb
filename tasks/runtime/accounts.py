"""The site's keys, its ledger and the account of a run.

Fingerprints, partition hashes and release IDs are HMACs, because a plain hash of private data could be compared with
a guess. The key of these digests never leaves data/private/.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tasks.config.presets import PRESETS
from tasks.config.values import read_yaml
from tasks.runtime.decisions import DECISION, REQUEST, Decision, refuse_unapproved, valid_decisions
from tasks.runtime.run import Run
from tasks.runtime.store import close_private_zone
from terrine.data.dataset import Dataset
from terrine.data.public import PUBLIC_BENCHMARKS
from terrine.determinism.randomness import derive_seed
from terrine.errors import BudgetError, LedgerError, typed
from terrine.privacy.accounting.events import Event
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.ledger.ledger import Ledger, StoredRelease
from terrine.privacy.ledger.people import PUBLIC, People
from terrine.privacy.ledger.site_key import account_of, canonical_json, keyed_digest, load_or_create_key
from terrine.privacy.ledger.site_registry import SiteRegistry
from terrine.privacy.ledger.task import Task
from terrine.privacy.noise import NoiseSource, ReplayNoise, SecureNoise

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SIGNING = "signing.pem"
"""File name of the site's signing key, in the folder of `ledger.key`."""


def site_key(run: Run) -> bytes:
    """Return the site's key; the first call creates it from the operating system's randomness (file mode 0600)."""
    close_private_zone(run.root)
    return load_or_create_key(run.path(run.params.ledger.key))


def site_signing_file(run: Run) -> Path:
    """Return the file of the key with which the site signs statements."""
    close_private_zone(run.root)
    return run.path(run.params.ledger.key).with_name(SIGNING)


def site_signing_key(run: Run) -> Ed25519PrivateKey:
    """Return the key with which the site signs statements; the first call creates it."""
    from terrine.deployment.signature import signing_key

    return signing_key(site_signing_file(run))


PEOPLE = "people.npz"
"""Name of the file beside a run's records with the digests by which a ledger recognises them."""

_DECIDES_WHO_IS_PUBLIC = ("public_fraction", "test_fraction", "pool", "pool_fraction", "validation", "id", "group")
"""Data settings that decide which records are public."""


def open_ledger(run: Run) -> Ledger:
    """Open the project's ledger, or create it if missing. The ledger refuses releases that lack a required approval."""
    settings, key = run.params.ledger, site_key(run)
    required = run.params.release.approval == "required"
    permit = partial(refuse_unapproved, key, trusted_keys(run), approved_facts(run)) if required else None
    return Ledger(run.database(settings.url), run.path(settings.store), key, site=run.site, permit=permit)


def approved_facts(run: Run) -> dict[str, Any]:
    """Return the facts about a run that every approval of its releases covers."""
    params = run.params
    about = params.about.model_dump()
    return {"run": run.name, "edition": params.data.edition, "budget": params.ledger.epsilon, "about": about}


def trusted_keys(run: Run) -> frozenset[str]:
    """Return the fingerprints of the keys that may approve a run's releases: by default, only the site's own."""
    if run.params.release.approvers:
        return frozenset(run.params.release.approvers)
    from terrine.deployment.signature import fingerprint

    path = run.path(run.params.ledger.key).with_name(SIGNING)
    return frozenset({fingerprint(site_signing_key(run).public_key())} if path.is_file() else ())


def approval_of(run: Run, release: StoredRelease) -> dict[str, Any] | None:
    """Return the signed approval under which a committed release was drawn, or None.

    The approval covers the operator's statement (`about`). If the statement has changed since, the approval does not
    cover the new one.
    """
    found = None
    for one in approvals_before_draw(run, release.release_id):
        same = all(release.inputs.get(name, value) == value for name, value in one.request["inputs"].items())
        found = asdict(one.approval) if same and one.request["about"] == run.params.about.model_dump() else found
    return found


def approvals_before_draw(run: Run, release_id: str) -> list[Decision]:
    """Return the signed approvals of a release from before its noise was drawn."""
    ledger = ledger_before(run)
    if ledger is None or not ledger.recorded(DECISION):
        return []
    rows = ledger.recorded(REQUEST, DECISION, "commit")
    drawn = next((row.position for row in rows if row.kind == "commit" and row.release_id == release_id), math.inf)
    before = [row for row in rows if row.kind != "commit" and row.position < drawn]
    last = {
        canonical_json([one.request["about"], one.request["inputs"]]): one
        for one in valid_decisions(site_key(run), None, before)
        if release_id in one.approval.releases
    }
    return [one for one in last.values() if one.approval.decision == "approved"]


def people_in(run: Run, dataset: Dataset) -> People | None:
    """Return the digests by which a ledger recognises the records of a run, or None for a public benchmark."""
    data = run.params.data
    if data.public_benchmark:
        return None
    return dataset.people(run.params.privacy.unit, edition=data.edition, **_declared(run))


def _declared(run: Run) -> dict[str, Any]:
    data = run.params.data
    return {f"data.{name}": getattr(data, name) for name in _DECIDES_WHO_IS_PUBLIC if hasattr(data, name)}


def stored_people(run: Run) -> People | None:
    """Return the digests that the stage `dataset` stored with the run's records, or None for a public benchmark."""
    path = run.folders.dataset / PEOPLE
    return People.load(path) if path.is_file() and not run.params.data.public_benchmark else None


def check_people(run: Run, people: People | None) -> None:
    """Check that a run's account may release results about its records and publish the public ones. Writes nothing.

    Args:
        run: The run.
        people: Digests of the records. None for a public benchmark.

    Raises:
        LedgerError: See `Ledger.check_people`.
    """
    if people is None:
        return
    ledger = ledger_before(run)
    if ledger is None:
        SiteRegistry(run.site).check("", people)
        return
    try:
        ledger.check_people(ledger_account(run), people)
    except LedgerError as error:
        if (name := account_names(run.root, site_key(run)).get(error.account or "")) is None:
            raise
        raise LedgerError(str(error).replace(str(error.account)[:16], f"'{name}'")) from error


def account_names(root: Path | None, key: bytes) -> dict[str, str]:
    """Return the names of public benchmarks' accounts and of those in a project, by their keyed digests."""
    names = {benchmark_account(key, name): name for name in PUBLIC_BENCHMARKS}
    patterns = ("data/private/*/parameters.yaml", f"{PRESETS}/*.yaml", "params.yaml")
    for path in [] if root is None else [path for each in patterns for path in root.glob(each) if path.is_file()]:
        account = (read_yaml(path).get("ledger") or {}).get("account")
        if account is not None:
            names[account_of(key, str(account))] = str(account)
    return names


def changed_settings(run: Run, ledger: Ledger) -> dict[str, Any]:
    """Return earlier values of the settings that decide which records are public, if they differ from this run's."""
    before = ledger.settings_before(ledger_account(run))
    now = _declared(run)
    return {name: value for name, value in before.items() if name in now and now[name] != value}


def published_earlier(run: Run) -> int:
    """Count the records that are private in this run and were published by earlier runs of the account."""
    people, ledger = stored_people(run), ledger_before(run)
    return 0 if people is None or ledger is None else ledger.published(ledger_account(run), people)


def publish(run: Run, people: People | None) -> None:
    """Record the publication of a run's public records in the account, before they are written.

    Raises:
        LedgerError: If a release of this or another account protects one of the public records.
    """
    if people is not None and (people.sides == PUBLIC).any():
        ledger, account = open_account(run)
        ledger.publish(account, people)


def benchmark_account(key: bytes, name: str) -> str:
    """Return the ledger's identifier of a public benchmark's default account."""
    return keyed_digest(key, "terrine ledger account of a benchmark", name.encode())


def ledger_account(run: Run) -> str:
    """Return the identifier of the run's account: the named one, or that of the public benchmark.

    The identifier is never a digest of the data: adding a record would then open a new budget.
    """
    name = run.params.ledger.account
    if name is not None:
        return account_of(site_key(run), name)
    return benchmark_account(site_key(run), run.params.data.name)


@contextlib.contextmanager
def budget_explained(run: Run) -> Iterator[None]:
    """Add the account's name, the remaining budget and remedies to a `BudgetError` raised in the block.

    The account's name is private to the site, so the message is for the operator only.
    """
    try:
        yield
    except BudgetError as error:
        if error.needs is None or error.left is None:
            raise
        name = run.params.ledger.account or run.params.data.name
        lines = [f"Account {name}: {error}"]
        if run.params.transcription is None and (left := math.floor(100 * error.left) / 100):
            lines.append(f"This fits: --set aggregation.epsilon={left:g}.")
        if math.isfinite(error.needs):
            needed = f"{round_up(error.needs, 2):g}"
            lines += [
                f"Or, if a larger total ε is acceptable, raise the budget and --set ledger.epsilon={needed}:",
                typed(["terrine", "ledger", "--budget", needed, "--account", name]),
            ]
        raise BudgetError("\n".join(lines)) from error


def open_registered(run: Run, account: str, *, delta: float, unit: str, public: bool) -> Ledger:
    """Return the ledger after registering the account with the budget of the parameters.

    Args:
        run: The run.
        account: Identifier of the account.
        delta: δ of the budget.
        unit: Protected unit.
        public: Whether the data are public. If so, ablations may use replayed noise.

    Raises:
        LedgerError: If the account is registered with another budget, mode or unit.
    """
    ledger = open_ledger(run)
    ledger.register(account, run.params.ledger.epsilon, delta, "replay" if public else "release", unit=unit)
    return ledger


def open_account(run: Run) -> tuple[Ledger, str]:
    """Return the ledger and the identifier of the run's account, which is registered if necessary."""
    account, params = ledger_account(run), run.params
    ledger = open_registered(
        run, account, delta=params.aggregation.delta, unit=params.privacy.unit, public=params.data.public_benchmark
    )
    return ledger, account


def ledger_before(run: Run) -> Ledger | None:
    """Return the run's ledger, or None if it does not exist. Nothing is created."""
    settings = run.params.ledger
    if not (run.path(settings.key).is_file() and run.path(settings.store).is_dir()):
        return None
    return open_ledger(run)


def release_at_price(
    run: Run,
    release_id: str,
    event: Event,
    noise: NoiseSource,
    draw: Callable[[], dict[str, NDArray[Any]]],
    inputs: Mapping[str, str] | None = None,
    data: People | None = None,
    tests: bool = False,
    task: Task | None = None,
) -> StoredRelease:
    """Release arrays at a known cost through the ledger, or return the stored release; see `Ledger.release`.

    Args:
        run: The run.
        release_id: Identity of the release.
        event: Exact cost.
        noise: Source of the noise.
        draw: Function that computes the arrays with noise.
        inputs: Digests to seal with the release.
        data: Digests of the records. Default: those that the stage `dataset` stored.
        tests: Whether the release also uses the held-out records.
        task: The task, if the release depends on labels.
    """
    ledger, account = open_account(run)
    return ledger.release(
        dataset=account,
        release_id=release_id,
        run=run.name,
        worst_case=event,
        delta=run.params.aggregation.delta,
        noise_kind=noise.kind,
        draw=lambda: (draw(), event),
        inputs=inputs,
        data=stored_people(run) if data is None else data,
        tests=tests,
        task=task,
    )


def noise_source(run: Run, purpose: str = "replayed noise", *index: int) -> NoiseSource:
    """Return the operating system's noise or, for ablations, noise replayed from the run's seed and a purpose."""
    if run.params.aggregation.noise == "secure":
        return SecureNoise()
    return ReplayNoise(derive_seed(run.params.seed, purpose, *index))
