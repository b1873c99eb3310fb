"""Approval of a run's releases before their noise is drawn (`release.approval`, docs/handing-over.md).

With `release.approval=required` a run stops before the first stage that releases, and stores a request in the ledger:
the releases with their worst-case cost, digests of their inputs, the account, the unit, and the operator's statement
about the data. Nothing is reserved: a reservation would stay charged if the release were refused. A person approves or
refuses the request with a signed decision, and the run continues or ends. A request that differs in any of these facts
needs a new decision. Spending by other runs does not void an approval, because the ledger checks the budget anyway.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from tasks.config.values import flat
from tasks.runtime.accounts import (
    account_names,
    approvals_before_draw,
    approved_facts,
    budget_explained,
    ledger_before,
    site_key,
    site_signing_key,
    trusted_keys,
)
from tasks.runtime.decisions import DECISION, REQUEST, ApprovalNeeded, Content, Decision, subject, valid_decisions
from tasks.runtime.release_identity import upstream
from tasks.runtime.releases import Release, describe_releases, name_of, unpaid
from tasks.runtime.run import Run
from terrine.errors import InputError, SettingError, TerrineError, typed
from terrine.privacy.accounting.events import Event, compose, from_json, to_json
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import guesses_in_hundred, price, total_variation
from terrine.privacy.facts import About
from terrine.privacy.ledger.account import Account, check_together
from terrine.privacy.ledger.chain import Row
from terrine.privacy.ledger.ledger import Ledger
from terrine.privacy.ledger.site_key import canonical_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from terrine.deployment.signature import Approval

Choice = Literal["approved", "refused"]


class ReleaseRefused(TerrineError):
    """A person refused the release of a run. Nothing was drawn and nothing was charged."""


@dataclass(frozen=True)
class Proposal:
    """Releases of one stage of a run.

    Attributes:
        ledger: Ledger in which the account is registered.
        account: Identifier of the account.
        releases: The releases, in order.
        inputs: Keyed digests of private inputs, and digests of public ones, by name.
        unit: Protected unit.
        delta: δ of the releases' cost.
        added: Cost of all releases under add/remove neighbours, if lower.
        expected: Expected usefulness in words, from public quantities; None if unknown.
        what: What is released, in words. Default: the names of the releases.
    """

    ledger: Ledger
    account: str
    releases: Sequence[Release]
    inputs: Mapping[str, str]
    unit: str
    delta: float
    added: Event | None = None
    expected: str | None = None
    what: str | None = None


def require_approval(run: Run, proposal: Proposal) -> None:
    """Check that a person has approved all uncommitted releases of a stage; otherwise store a request.

    Raises:
        ApprovalNeeded: If there is no decision about this request. The message shows it and the next commands.
        BudgetError: If there is no approval, and the account does not cover the releases.
        ReleaseRefused: If the last decision about the request is a refusal.
    """
    ledger = proposal.ledger
    ahead = [release for release in proposal.releases if not ledger.committed(release.identity)]
    if run.params.release.approval != "required" or not ahead:
        return
    request = _request(run, proposal, ahead)
    rows = ledger.recorded(REQUEST, DECISION)
    decisions = list(valid_decisions(site_key(run), trusted_keys(run), rows))
    last = next((decision for decision in reversed(decisions) if decision.covers(request)), None)
    if last is not None and last.approval.decision == "approved":
        return
    with contextlib.nullcontext() if _imports(request) else budget_explained(run):
        costs = [release.worst_case for release in unpaid(ledger, ahead)]
        # A person should not be asked about releases that the account cannot pay for.
        check_together(ledger.together(proposal.account), costs, "secure", describe_releases(ahead))
    asked = [row.content for row in rows if row.kind == REQUEST and row.content["run"] == run.name]
    if asked[-1:] != [request]:
        ledger.record(REQUEST, proposal.account, request)
    if last is not None and last.request["releases"] == request["releases"]:  # not refused as part of a larger request
        raise ReleaseRefused(
            f"The release of run {run.name} was {last.report()}. Nothing was drawn or charged. The reason: "
            f"terrine release show {run.name}. Change the settings, or approve it: terrine release approve {run.name}"
        )
    lines = [f"Run {run.name} needs an approval before it releases. Nothing was drawn or charged."]
    kinds = {release.kind for release in ahead}
    earlier = [one for one in decisions if one.request["run"] == run.name and one.approval.decision == "approved"]
    earlier = [
        one
        for one in earlier
        if any(each["kind"] in kinds and not ledger.committed(each["id"]) for each in one.request["releases"])
    ]
    if earlier and (changed := differences(earlier[-1].request, request)):
        lines.append(f"It was {earlier[-1].report()}, but since then changed: {'; '.join(changed)}.")
    lines += [f"  {name}: {text}" for name, text in describe_request(run, ledger, request)]
    lines += [
        typed(["terrine", "release", "approve", run.name]),
        typed(["terrine", "release", "refuse", run.name, "--why", "TEXT"]),
        f"After the approval: {next_step(request)}",
    ]
    raise ApprovalNeeded("\n".join(lines))


def _imports(request: Content) -> bool:
    return any(release["kind"] == "imported" for release in request["releases"])


def next_step(request: Content) -> str:
    """Return what to do after an approval."""
    if _imports(request):
        return "repeat the import: terrine statement import, with the same facts and files"
    return f"terrine run {request['run']}"


def _request(run: Run, proposal: Proposal, ahead: Sequence[Release]) -> dict[str, Any]:
    """Return everything that an approval covers, as JSON values."""
    settings: dict[str, Any] = {}
    for release in ahead:
        settings |= flat(upstream(run.params, release.kind))
    request = {
        **approved_facts(run),
        "account": proposal.account,
        "unit": proposal.unit,
        "delta": proposal.delta,
        "releases": [{"kind": one.kind, "id": one.identity, "event": to_json(one.worst_case)} for one in ahead],
        "inputs": dict(proposal.inputs),
        "settings": settings,
        "expected": {
            "signal": proposal.expected,
            "added": None if proposal.added is None else to_json(proposal.added),
            "what": proposal.what or " and ".join(dict.fromkeys(name_of(run.params, one.kind) for one in ahead)),
        },
    }
    return dict(json.loads(canonical_json(request)))  # as a ledger row stores it


def differences(before: Content, now: Content) -> list[str]:
    """Describe the differences between an approved request and the current one."""
    found = [
        f"{key} ({old.get(key, 'default')} → {new.get(key, 'default')})"
        for old, new in ((flat(before["settings"]), flat(now["settings"])),)
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    found += [
        f"{name} ({before[name]} → {now[name]})"
        for name in ("edition", "unit", "delta", "budget")
        if before[name] != now[name]
    ]
    found += ["the account"] * (before["account"] != now["account"])
    found += [f"about.{key}" for key, value in now["about"].items() if before["about"][key] != value]
    inputs = now["inputs"].items()
    found += [f"the {name}" for name, value in inputs if before["inputs"].get(name, value) != value]
    events = [{release["id"]: release["event"] for release in one["releases"]} for one in (before, now)]
    same = events[0].keys() & events[1].keys()
    found += ["the price"] * any(events[0][name] != events[1][name] for name in same)
    new = [release["kind"] for release in now["releases"] if release["id"] not in events[0]]
    return found or [f"the release of {kind}" for kind in new]


def describe_request(run: Run, ledger: Ledger, request: Content, *, private: bool = False) -> list[tuple[str, str]]:
    """Describe a request as pairs of names and texts, with the account's current balance.

    Args:
        run: The run.
        ledger: The run's ledger.
        request: Content of the request.
        private: Whether to show the account's name, which is site-local.
    """
    events = [from_json(release["event"]) for release in request["releases"]]
    delta, unit, own = request["delta"], request["unit"], request["account"]
    account, *linked = ledger.together(own)
    after = [Account.from_json(one.to_json()) for one in (account, *linked)]
    charged = ledger.reserved(release["id"] for release in request["releases"])
    for one in after:
        for release, event in zip(request["releases"], events, strict=True):
            if release["id"] not in charged:
                one.reserve(release["id"], event)
    left, budget = after[0].left(*after[1:]), request["budget"]
    added, expected = request["expected"]["added"], request["expected"]["signal"]
    cheaper = "" if added is None else f"; {_epsilon(from_json(added), delta)} if only added or removed"
    limit = "no budget" if budget is None else f"budget ε = {budget:g}"
    rest = "" if left is None else f", then left: one run of up to ε = {math.floor(100 * left) / 100:g}"
    spent, total = round_up(account.total()), round_up(after[0].total())
    if account.total():
        rest = f"; the account's first release fixed how costs are added up{rest}"
    if budget is not None and after[0].total() > budget and len(charged) < len(events):
        rest = ": MORE THAN THE BUDGET. The ledger will refuse this release, and an approval does not change that"
    name = account_names(run.root, site_key(run)).get(own) if private else None
    labels = {"one_per_person": f"one {unit} per person"}
    words = {True: "yes", False: "no"}
    stated = [
        f"{labels.get(key, key)}: {words.get(value, value)}"
        for key, value in request["about"].items()
        if value is not None
    ]
    epsilon = price(compose(*events), delta)
    guesses = guesses_in_hundred(total_variation(compose(*events), epsilon, delta)) if math.isfinite(epsilon) else 100
    return [
        ("releases", f"{request['expected']['what']} ({', '.join(one['id'][:16] for one in request['releases'])})"),
        ("about", "; ".join([f"each {unit} of edition {request['edition']}", *stated])),
        ("account", f"{name} ({own[:16]})" if name else own[:16]),
        ("price", f"at most {_epsilon(compose(*events), delta)} if a {unit} is replaced{cheaper}; δ = {delta:g}"),
        (
            "balance",
            f"{limit}, spent ε = {spent:.4g}, with this {total:.4g}{rest}",
        ),
        ("protection", f"at most {guesses:g} of 100 guesses about one {unit} are correct; 50 by tossing a coin"),
        ("expected", expected or "no estimate for this mechanism: see terrine check"),
    ]


def _epsilon(event: Event, delta: float) -> str:
    epsilon = price(event, delta)
    return f"ε = {round_up(epsilon):.4g}" if math.isfinite(epsilon) else "no ε (NOT PRIVATE)"


def pending(run: Run) -> tuple[Ledger, Row, Decision | None]:
    """Return a run's ledger, the row of its last request, and the last valid decision about its content, if any.

    Raises:
        InputError: If the run has not asked.
    """
    ledger = ledger_before(run)
    rows = [] if ledger is None else ledger.recorded(REQUEST, DECISION)
    asked = [row for row in rows if row.kind == REQUEST and row.content["run"] == run.name]
    if ledger is None or not asked:
        raise InputError(
            f"Run {run.name} waits for no approval. With release.approval=required, it asks before it releases: "
            f"terrine run {run.name}"
        )
    decisions = valid_decisions(site_key(run), trusted_keys(run), rows)
    about = [decision for decision in decisions if decision.request == asked[-1].content]
    return ledger, asked[-1], about[-1] if about else None


def uncovered(run: Run, release_id: str, statement: Mapping[str, Any] | None = None) -> str | None:
    """Explain why no approval covers what is stated about a drawn release; None: one does, or none is required.

    Args:
        run: The run.
        release_id: The release.
        statement: Content of its privacy.json, which must quote the approval and the operator's statement (`about`).
    """
    if run.params.release.approval != "required":
        return None
    approvals, now = approvals_before_draw(run, release_id), run.params.about.model_dump()
    kept = f"The release of run {run.name} may not be signed or leave: "
    again = "make another release with its own approval and price (data.edition)"
    if not approvals:
        return f"{kept}it was drawn without an approval. Approvals are given before the noise is drawn: {again}."
    last = approvals[-1].request
    command = "terrine statement import" if _imports(last) else f"terrine run {run.name}"
    same = [asdict(one.approval) for one in approvals if one.request["about"] == now]
    if same:
        if statement is None or (
            statement.get("approval") in same
            and ((statement.get("facts") or {}).get("about") or About().model_dump()) == now
        ):
            return None
        return f"{kept}its privacy.json states something else. Write it again: {command}"
    before = last["about"]
    changed = {f"about.{key}": before[key] for key, value in now.items() if before[key] != value}
    restored = [
        word for key, value in changed.items() for word in ("--set", f"{key}={json.dumps(value, ensure_ascii=False)}")
    ]
    return (
        f"{kept}{' and '.join(changed)} changed after the approval. Restore it, or {again}. "
        f"To restore it:\n{typed([*command.split(), *restored])}"
    )


def refuse_uncovered(run: Run, release_id: str, statement: Mapping[str, Any] | None = None) -> None:
    """Raise InputError if no approval covers what is stated about a drawn release; see `uncovered`."""
    if told := uncovered(run, release_id, statement):
        raise InputError(f"{told}\nNothing was signed.")


def describe_state(run: Run) -> str:
    """Return a sentence that states whether a run asked for an approval, and the last decision."""
    try:
        _, _, decision = pending(run)
    except InputError:
        return (
            "A person must approve its release (release.approval=required). The run asks when it is ready to release."
        )
    told = "waits for a decision" if decision is None else f"was {decision.report()}"
    return f"The last release that run {run.name} asked for {told}. Details: terrine release show {run.name}"


def decide(
    run: Run,
    key: Ed25519PrivateKey | None,
    decision: Choice,
    *,
    role: str,
    name: str = "",
    why: str = "",
) -> Approval:
    """Store a signed decision about a run's last request. Repeating the last decision changes nothing.

    Args:
        run: The run.
        key: Key of the person; None: the site's key, which signs on the person's behalf.
        decision: The decision.
        role: Role of the person. Published in the statement.
        name: Name of the person. Private.
        why: Reason. Private.

    Raises:
        InputError: If the run has not asked, its releases are committed, or the role is empty.
        SettingError: If the key is not among `release.approvers`.
    """
    from terrine.deployment.signature import fingerprint, sign_approval

    ledger, row, last = pending(run)
    request = row.content
    signer, key = ("site", site_signing_key(run)) if key is None else ("person", key)
    own, releases = fingerprint(key.public_key()), [release["id"] for release in request["releases"]]
    if own not in trusted_keys(run):
        raise SettingError(
            f"The key {own} may not approve this run. To trust it, add it to release.approvers in params.yaml. Nothing "
            "was approved."
        )
    if not role.strip():
        raise InputError("The role is empty. The statement names it: --role 'data steward'.")
    if all(ledger.committed(release) for release in releases):
        raise InputError(f"The release of run {run.name} has been drawn already. Nothing was changed.")
    repeated = last is not None and last.position > row.position
    if last is not None and repeated and (last.approval.decision, last.approval.key) == (decision, own):
        return last.approval
    content = {
        "run": run.name,
        "releases": releases,
        "decision": decision,
        "role": role.strip(),
        "signer": signer,
        "subject": subject(site_key(run), request, name, why),
        "signed": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    approval = sign_approval(key, content)
    body = {"request": row.position, "approval": asdict(approval), "name": name, "why": why}
    ledger.record(DECISION, request["account"], body)
    return approval
