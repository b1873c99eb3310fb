"""What a teacher party taught before anybody was there, kept in its own folder: votes, or records ready to be summed or
to be learned from in rounds.

A session waits for nobody for ever. So a party teaches when it suits (`terrine party teach`), and the session uses what
it kept, unless the terms, its own settings or its data have changed since. Torch is loaded where something is taught.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.config.values import digest
from tasks.parties.config import OwnTeachers, PartyConfig
from tasks.parties.state import PartyState
from terrine.errors import ArtefactError, SettingError
from terrine.files import file_digest

if TYPE_CHECKING:
    from terrine.aggregation.records import Records

log = logging.getLogger("terrine.party")

_FOLDER, _KEPT = "taught", "given"
VOTES = "votes"
_OF_RECORDS = ("vectors", "labels", "weights")


def teach_before(config: PartyConfig) -> str:
    """Teach what a session will ask for, unless that is done; return a sentence about it, for the party alone.

    Raises SettingError for a party that gives a file, and what `teach` does.
    """
    name = config.own_credentials().name
    if config.own is None:
        raise SettingError(f"{name} gives a file, {config.votes}: nothing is to be taught. Run: terrine party vote.")
    held = config.terms.teachers[name]
    found = kept(config, held)
    if found is not None and "arrays" in found:
        return f"{name}: nothing has changed since this was taught, on {found['at']}. Next: terrine party vote."
    if found is not None:
        log.warning("%s: %s since it was taught: it is taught anew", name, found["since"])
    arrays = teach(config, held)["arrays"]
    if config.terms.averages is not None:
        what = f"the records of {held} teachers, ready to learn in the rounds of the session,"
    elif VOTES in arrays:
        what = f"votes of {held} teachers on {len(arrays[VOTES]):,} queries"
    else:
        what = f"{len(arrays['labels']):,} records, ready to be summed,"
    return f"{name}: {what} are in {_state(config.own).folder}, private. Next: terrine party vote."


def teach(config: PartyConfig, held: int) -> dict[str, Any]:
    """Teach now, whatever was kept, and keep what came of it; return what is known about it, with its arrays.

    Raises what `tasks.parties.training.cast_votes` and `own_records` do.
    """
    from tasks.parties.training import cast_votes, make_ready, own_records

    own, terms = config.own, config.terms
    assert own is not None
    seal = _seal(own, terms.public(), held)  # before: data that change meanwhile are other data
    arrays: dict[str, np.ndarray] = {}
    if terms.averages is not None:
        make_ready(own, terms, held)
    elif terms.fixed_point is None:
        arrays = {VOTES: cast_votes(own, terms, held)}
    else:
        records = own_records(own, terms, held)
        arrays = {name: getattr(records, name) for name in _OF_RECORDS}
    at = datetime.now(UTC).isoformat(timespec="seconds")
    _state(own).save(_KEPT, arrays, **seal, at=at)
    return {"arrays": arrays, "at": at}


def kept(config: PartyConfig, held: int) -> dict[str, Any] | None:
    """Return what was taught for these very terms, settings and data; None where that is to be done, and why is said.

    `since` in it names what has changed where something was kept that is of no use any more.
    """
    own = config.own
    assert own is not None
    try:
        stored = _state(own).load(_KEPT)
    except ArtefactError:
        return {"since": "what was kept is damaged"}
    if stored is None:
        return None
    arrays, about = stored
    if since := _changed(about, _seal(own, config.terms.public(), held)):
        return {"since": since, "at": about["at"]}
    return {"arrays": arrays, "at": about["at"]}


def taught(config: PartyConfig, name: str, held: int) -> dict[str, np.ndarray]:
    """Return the arrays that the party called `name` gives: those that were kept, or what is taught now."""
    found = kept(config, held)
    if found is not None and "arrays" in found:
        log.info("%s: what was taught on %s is shared", name, found["at"])
        return dict(found["arrays"])
    if found is not None:
        log.warning("%s: %s since `terrine party teach`: it is taught anew, now", name, found["since"])
    else:
        log.info("%s: teaching, now; `terrine party teach` does it before anybody waits", name)
    return dict(teach(config, held)["arrays"])


def records_of(arrays: Mapping[str, np.ndarray], classes: int) -> Records:
    """Return the records that were kept."""
    from terrine.aggregation.records import Records

    return Records(**{name: arrays[name] for name in _OF_RECORDS}, classes=classes)


def _state(own: OwnTeachers) -> PartyState:
    return PartyState(own.work, _FOLDER)


def _seal(own: OwnTeachers, terms: dict[str, Any], held: int) -> dict[str, Any]:
    """What was taught follows from this alone: JSON values, private."""
    backbone = own.backbone / "backbone.safetensors"
    return {
        "terms": terms,
        "held": held,
        "settings": digest(own.params, 64),
        "data": _look_of_data(own),
        "backbone": file_digest(backbone) if backbone.is_file() else "nothing",
    }


def _look_of_data(own: OwnTeachers) -> str:
    """Digest of names, sizes and times of the files that the data settings name: no file is read."""
    from tasks.config.params import validate

    account = {"account": "kept by the guardian", "epsilon": 1.0}
    settings = validate({"ledger": account, "data": own.params.get("data", {})}).data
    found = []
    for value in settings.__dict__.values():
        if isinstance(value, Path):
            place = own.work / value
            files = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]
            for path in files:
                if path.is_file():
                    state = path.stat()
                    found.append([str(path.relative_to(place)), state.st_size, state.st_mtime_ns])
    return digest(found, 64)


def _changed(about: dict[str, Any], seal: dict[str, Any]) -> str:
    """What has changed, in words; empty where nothing has."""
    then, now = about["terms"], seal["terms"]
    terms = [f"{name} was {then.get(name)!r} and is {now.get(name)!r}" for name in {**now, **then}
             if then.get(name) != now.get(name)]  # fmt: skip
    parts = {"settings": "own.params changed", "data": "the data changed", "backbone": "the backbone changed"}
    words = [f"the terms changed ({'; '.join(terms[:3])})"] if terms else []
    return " and ".join([*words, *(said for name, said in parts.items() if about[name] != seal[name])])
