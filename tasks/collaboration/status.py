"""`terrine party status`: the state of a collaboration as one of its parties sees it.

The data come from the party's own folder and from each service that answers. These data contain no votes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.parties.answers import stored_answers
from tasks.parties.client import CollaborationError, ServiceClient
from tasks.parties.config import PartyConfig, read_party
from tasks.parties.ledgers import account_status
from terrine.errors import TerrineError

Rows = list[tuple[str, str]]


def status(path: Path) -> dict[str, Any]:
    """Return the state of a collaboration, as JSON values: strings, and rows of strings.

    Raises:
        SettingError: The configuration is impossible.
    """
    config = read_party(path)
    name, terms = config.name, config.terms
    states = {service: _fetch(config, service) for service in ("guardian", "student")}
    state = states["student"]
    rounds: dict[str, list[str]] = state.get("counted", {})
    counted = rounds[max(rounds, key=int)] if rounds and state["state"] != "open" else []
    accepted = {party for one in states.values() for party in one.get("accepted", [])}
    reports = state.get("reports", {}) | dict.fromkeys(counted, "counted")
    return {
        "name": name,
        "role": config.role,
        "terms": _terms(config),
        "round": _round(states, terms.last),
        "parties": [
            (
                party,
                role if role != "teacher" else f"{role}, {terms.held(terms.teachers[party])}",
                "yes" if party in accepted else "–",
                reports.get(party, "–"),
            )
            for party, role in terms.roles().items()
        ],
        "account": _account(config),
        "next": _next(config, name, path, states, counted),
    }


def _fetch(config: PartyConfig, service: Any) -> dict[str, Any]:
    try:
        return dict(ServiceClient(config, service, patience=0).json("GET", "status"))
    except CollaborationError as error:
        return {"problem": str(error)}


def _terms(config: PartyConfig) -> Rows:
    terms = config.terms
    if terms.votes:
        queried = f"{terms.queried:,} of {terms.queries:,} queries, {terms.classes} classes"
        queried += f", after {terms.last} rounds of averages" if terms.last else ""
    else:
        queried = f"{terms.numbers:,} sums, in {terms.last + 1} rounds" if terms.last else f"{terms.numbers:,} sums"
    return [
        ("mechanism", terms.mechanism),
        ("queried", queried),
        ("guarantee", f"ε ≤ {terms.epsilon:g} at δ = {terms.delta:g} for a {terms.unit}"),
        ("shared by", f"{terms.held(terms.total)} at {len(terms.teachers)} parties, {terms.minimum} are needed"),
        ("edition", terms.edition or "(none)"),
        ("digest of the terms", terms.digest[:16]),
    ]


def _round(states: dict[str, dict[str, Any]], last: int) -> Rows:
    state = states["student"]
    rows = [] if "round" not in state else [("round", f"{state['round']} of {last}: {state['state']}")]
    if state.get("closes"):
        rows.append(("closes", f"when all reports are in, or at {state['closes'][:16].replace('T', ' ')} UTC"))
    return [*rows, *((service, str(one["problem"])) for service, one in states.items() if one.get("problem"))]


def _account(config: PartyConfig) -> Rows:
    try:
        found = account_status(config)
        about = stored_answers(config) if config.role == "student" else None
    except TerrineError as error:
        return [("account", f"cannot be read: {error}")]
    if about is not None and (record := about["guardian"]) is not None:
        return [("charged", f"ε = {record['epsilon']:g}; all releases of the account ε = {record['epsilon_total']:g}")]
    if found is None:
        return [("account", "kept by the guardian")]
    budget = "none: recorded and never refused" if found["budget"] is None else f"ε = {found['budget']:g}"
    rows = [
        ("budget", f"{budget} at δ = {found['delta']:g} for a {found['unit']}, over all editions"),
        ("spent or reserved", f"ε = {found['spent']:g}"),
    ]
    if found["left"] is not None:
        rows.append(("room for one more of", f"ε = {found['left']:.4f}"))
    return [*rows, ("this edition", f"{found['state']}, ε ≤ {found['price']:g}")]


def _next(config: PartyConfig, name: str, path: Path, states: dict[str, dict[str, Any]], counted: list[str]) -> str:
    """Return this party's next step."""
    state = states["student"]
    if config.role == "guardian":
        return f"terrine party serve --config {path} (until all parties have finished)"
    complete = state.get("state") == "complete"
    if config.role == "student":
        return f"terrine party {'finish' if complete else 'serve'} --config {path}"
    if complete or name in counted:
        return f"terrine party finish --config {path} --student student.zip (when the student party has sent it)"
    if all(name in known.get("reports", {name: ""}) for known in states.values()) and state.get("reports"):
        return "Nothing: the report of this round is uploaded."
    return f"terrine party submit --config {path}"
