"""Where a party stands in its collaboration, from what lies in its own folder: what `terrine party status` shows.

Nobody is asked, and nothing is changed. What is shown is the party's own business; no vote and no accuracy
is in it, but whether one was released.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.parties.agreement.acceptance import ACCEPTANCE
from tasks.parties.answers import ABOUT
from tasks.parties.config import PartyConfig, read_party
from tasks.parties.measuring import PLACE
from tasks.parties.state import AT_WORK, OUTCOME, STANDING, kept_values
from tasks.parties.teaching import kept
from tasks.runtime.store import Folders
from terrine.errors import TerrineError
from terrine.files import json_object
from terrine.locks import is_held
from terrine.spans import span


def standing(path: Path) -> dict[str, Any]:
    """Return the state of a collaboration as one of its parties sees it, JSON values: texts, and rows of texts.

    Raises SettingError for a configuration that cannot be.
    """
    config = read_party(path)
    try:
        name, problem = config.own_credentials().name, None
    except TerrineError as error:
        name, problem = path.resolve().parent.name, str(error)
    session, meeting = _session(config), _meeting(config)
    steps, meetings = _steps(config, name, path, meeting), [session] if meeting is None else [session, meeting]
    return {
        "name": name,
        "role": config.role,
        "edition": f"edition {config.terms.edition}" if config.terms.edition else "first edition",
        "problem": problem,
        "terms": _terms(config),
        "parties": _parties(config, path, session),
        "session": [row for each in meetings for row in each["rows"]],
        "account": _account(config),
        "steps": steps,
        "next": "Nothing: the session is under way here, and goes on by itself."
        if any(each["running"] for each in meetings)
        else next((step["command"] for step in steps if not step["done"]), "Nothing: this edition is complete."),
    }


def account_standing(config: PartyConfig) -> dict[str, Any] | None:
    """Return what this party knows of the account that a release of these terms is charged to, `standing_of`: the
    guardian all, a teacher party its own, the student party what the guardian told it last. None where nothing is
    known.
    """
    if config.ledger is not None:
        from tasks.parties.account import OwnAccount, account_in_ledger, begun, standing_of

        if (found := begun(config.ledger)) is None:
            return standing_of(None, "", "", config)
        if config.role == "teacher":
            return OwnAccount(config, create=False).standing()
        from tasks.parties.paid_release import noise_of, release_of

        key, ledger = found
        account = account_in_ledger(key, config.ledger)
        return standing_of(ledger, account, release_of(key, config, account, noise_of(config)), config)
    about = None if config.role != "student" else json_object(_answers(config))
    record = None if about is None else about.get("guardian")
    if record is None:
        return None
    return {
        "budget": record["epsilon_account"],
        "spent": record["epsilon_total"],
        "left": None,
        "price": record["epsilon"],
        "delta": record["delta"],
        "unit": config.terms.unit,
        "state": "charged",
        "beside": 0,
    }


def answers_of(config: PartyConfig) -> dict[str, Any] | None:
    """Return what is known about a student party's answers to these very terms; None where there are none."""
    about = json_object(_answers(config))
    return about if about is not None and about.get("terms") == config.terms.public() else None


def was_finished(config: PartyConfig) -> bool:
    """Whether the session about these very terms came to its end here."""
    return kept_values(config.state / OUTCOME, config.terms.digest) is not None


def _answers(config: PartyConfig) -> Path:
    assert config.answers is not None
    return config.answers / ABOUT


def _terms(config: PartyConfig) -> list[list[str]]:
    terms = config.terms
    if terms.votes:
        asked = f"{terms.asked:,} of {terms.queries:,} queries, {terms.classes} classes"
        asked += f", after {terms.last} rounds of averages" if terms.last else ""
    else:
        asked = f"{terms.numbers:,} sums, in {terms.last + 1} rounds" if terms.last else f"{terms.numbers:,} sums"
    return [
        ["mechanism", terms.mechanism],
        ["asked", asked],
        ["guarantee", f"ε ≤ {terms.epsilon:g} at δ = {terms.delta:g} for a {terms.unit}"],
        ["shared by", f"{terms.held(terms.total)} at {len(terms.teachers)} parties, {terms.minimum} must be there"],
        ["waits", f"{span(config.deadline)} for teacher parties, {span(config.patience)} for others"],
        ["digest of the terms", terms.digest[:16]],
    ]


def _parties(config: PartyConfig, path: Path, session: dict[str, Any]) -> list[dict[str, str]]:
    files = [path.parent / ACCEPTANCE, *config.accepted.glob("*")]  # its own, and what the others mailed
    accepted = {(json_object(one) or {}).get("party") for one in files}
    rows = []
    for name, role in config.terms.roles().items():
        held = config.terms.teachers.get(name)
        rows.append(
            {
                "name": name,
                "role": role if held is None else f"{role}, {config.terms.held(held)}",
                "accepted": "yes" if name in accepted else "–",
                "state": session["who"].get(name, "–"),
            }
        )
    return rows


def _session(config: PartyConfig) -> dict[str, Any]:
    """Return rows about the session, and what is known of each party in it."""
    now, outcome = (kept_values(config.state / name, config.terms.digest) for name in (STANDING, OUTCOME))
    who: dict[str, str] = {}
    if now is None:
        return {"rows": [["session", "not begun here"]], "who": who, "running": False}
    running, doing = _is_under_way(config.state, now), str(now["doing"])
    rows = [["session", doing if running or outcome is None else "complete"], ["last word", _last_word(now, running)]]
    if running:
        who |= dict.fromkeys(now.get("here", []), "here") | dict.fromkeys(now.get("missing", []), "missing")
    counted = None if outcome is None else (outcome.get("guardian") or outcome).get("counted")
    if isinstance(counted, list):
        who |= {name: "counted" if name in counted else "late or left out" for name in config.terms.teachers}
    return {"rows": rows, "who": who, "running": running}


def _meeting(config: PartyConfig) -> dict[str, Any] | None:
    """Return rows about the parties' second meeting, for one accuracy of all, and where it stands; None where there was
    no such meeting."""
    place = config.state / PLACE
    now, outcome = json_object(place / STANDING), json_object(place / OUTCOME)
    if now is None or now.get("voted") != config.terms.agreed:
        return None
    running = _is_under_way(place, now)
    released = outcome is not None and outcome.get("agreed") == now["agreed"] and not running
    doing = "released" if released else str(now["doing"])
    rows = [[f"one accuracy of all, at ε = {now['price']:g}", doing], ["last word", _last_word(now, running)]]
    return {"rows": rows, "running": running, "released": released, "price": now["price"]}


def _is_under_way(state: Path, now: dict[str, Any]) -> bool:
    return is_held(state / AT_WORK) and now["doing"] != "over"


def _last_word(now: dict[str, Any], running: bool) -> str:
    return f"{now['at'][:16].replace('T', ' ')} UTC{'' if running else ', not running now'}"


def _account(config: PartyConfig) -> list[list[str]]:
    try:
        found = account_standing(config)
    except TerrineError as error:
        return [["account", f"cannot be read: {error}"]]
    if found is None:
        return [["account", "kept by the guardian"]]
    budget = "none: recorded and never refused" if found["budget"] is None else f"ε = {found['budget']:g}"
    rows = [
        ["budget", f"{budget} at δ = {found['delta']:g} for a {found['unit']}, over all editions"],
        ["spent or reserved", f"ε = {found['spent']:g}"],
    ]
    if found["left"] is not None:
        rows.append(["room for one more of", f"ε = {found['left']:.4f}"])
    return [*rows, ["this edition", f"{found['state']}, ε ≤ {found['price']:g}"]]


def _steps(config: PartyConfig, name: str, path: Path, meeting: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return what this party does in an edition, in order, and whether it is done."""
    said = f"--config {path}"
    steps: list[tuple[str, bool, str]] = []
    if config.own is not None and name in config.terms.teachers:
        found = kept(config, config.terms.teachers[name])
        state = "not yet" if found is None else found.get("since") or f"on {found['at'][:10]}"
        done = found is not None and "arrays" in found
        what = "taught" if config.terms.votes else "records read"
        steps.append((f"{what} ({state})", done or was_finished(config), f"terrine party teach {said}"))
    steps.append(("voted" if config.terms.votes else "sums shared", was_finished(config), f"terrine party vote {said}"))
    if config.role == "student" and config.learn is not None:
        made = (config.learn.work / "student.zip").is_file()
        steps.append(("student made and handed on", made, f"terrine party finish {said}"))
    if config.role == "teacher" and config.own is not None:
        seen = Folders(config.own.work, "own").evaluation.is_file() and was_finished(config)
        steps.append(("student tested here", seen, f"terrine party finish {said} --student student.zip"))
    if meeting is not None:
        student = " --student student.zip" if config.role == "teacher" else ""
        command = f"terrine party finish {said}{student} --epsilon {meeting['price']:g}"
        steps.append(("one accuracy of all", meeting["released"], command))
    return [{"what": what, "done": done, "command": command} for what, done, command in steps]
