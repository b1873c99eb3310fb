"""A teacher party's local training: votes, sums, or updates of averages, from its own records.

A party trains the teachers of a run with the same stages, in its own folder. Query images and backbone are public
inputs; only reports leave the party. Votes of the same teachers on the same batch are cached.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tasks.artefacts.averages import write_averages
from tasks.artefacts.features import query_features
from tasks.artefacts.records import load_dataset
from tasks.artefacts.teachers import load_records, read_votes
from tasks.collaboration.proposal import BACKBONE, check_public
from tasks.config.params import Params, validate
from tasks.config.values import flat, merge
from tasks.parties.config import OwnTeachers, PartyConfig
from tasks.parties.submit import Report
from tasks.parties.terms import Terms
from tasks.pipeline import dataset, partition, teach, vote
from tasks.pipeline.average import make_learner
from tasks.pipeline.sums import load_summed_records
from tasks.runtime.run import Run
from tasks.runtime.store import link
from terrine import npy
from terrine.aggregation.records import Records
from terrine.data.source import SOURCES, Source
from terrine.device import resolve_device
from terrine.errors import InputError, SettingError
from terrine.files import atomic_file, private_folder
from terrine.geometry import as_size, in_json, is_size
from terrine.models.architecture import ARCHITECTURES
from terrine.models.backbone_files import read_description
from terrine.teachers.averaging.averaged import centre_records, party_means
from terrine.teachers.averaging.ttac import Average, local_round

_SECTIONS = ("seed", "device", "data", "privacy", "partition", "teachers", "backbone", "pretraining", "queries")
# Required, but not used: the guardian keeps the ledger.
_LEDGER: dict[str, Any] = {"ledger": {"account": "kept by the guardian", "epsilon": 1.0}}


def report_source(config: PartyConfig) -> Report:
    """Return a function that computes a teacher party's report from round and weights.

    Raises:
        InputError: Votes, sums, data or a batch do not match the terms.
        SettingError: The configuration has parameters that a teacher party may not set.
    """
    terms, held = config.terms, config.terms.teachers[config.name]
    if terms.averages is not None:
        return OwnAverages(config, held)
    assert config.own is not None
    own = config.own
    if (fixed := terms.fixed_point) is None:
        return lambda number, weights: cast_votes(prepare_run(own, terms, held))[: terms.queried]
    assert terms.records is not None
    most = held * terms.records
    summed = fixed.schedule.summing(own_records(own, terms, held))
    return lambda number, weights: fixed.shared(summed(weights), most, number)[:, None]


class OwnAverages:
    """Updates of a party's own teachers in rounds of averages, and their votes after the last average (TTAC).

    Control variates stay at the party. Updates are stored before a round's report is made, so a repeated command
    continues with those of the open round. A party does not catch up on rounds that it missed.
    """

    def __init__(self, config: PartyConfig, held: int) -> None:
        assert config.own is not None
        assert config.terms.averages is not None
        self._terms, self._held, self._shared = config.terms, held, config.terms.averages
        self._run = prepare_run(config.own, config.terms, held)
        teach.extract_features.fn(self._run)
        self._learner = make_learner(self._run)
        self._records = load_records(self._run, self._learner.inputs)
        self._folder = config.own.work / "averages" / config.terms.digest[:32]
        private_folder(self._folder)

    def __call__(self, number: int, weights: np.ndarray | None) -> np.ndarray:
        """Return int64 [numbers, 1], or votes [asked, held] in the round after the last average."""
        shared, teachers = self._shared, range(self._held)
        start = shared.start(weights, number)
        if number < shared.first:
            return shared.shared(party_means(self._records, teachers), number)[:, None]
        learner, place = self._learner, number - shared.first
        average = Average.start(learner)
        if start.average is not None:
            average = Average(average.value + start.average.value, start.average.control)
        before = self._controls(place)
        if number == shared.passes:
            arrays = {"value": average.value, "control": average.control}
            write_averages(self._run, arrays if start.centre is None else arrays | {"centre": start.centre}, before)
            return cast_votes(self._run)[: self._terms.queried]
        records = self._records if start.centre is None else centre_records(self._records, teachers, start.centre)
        local = local_round(
            learner,
            average,
            before,
            records,
            teachers,
            shared.averaging.settings,
            place,
            seed=self._run.params.seed,
            device=resolve_device(self._run.params.device),
        )
        with atomic_file(self._folder / f"own-{place + 1}.npy", owner_only=True) as file:
            np.save(file, local.own, allow_pickle=False)
        return shared.shared(local.update, number)[:, None]

    def _controls(self, place: int) -> np.ndarray:
        """Return the teachers' control variates before a round, [held, P]: those of their last round."""
        for earlier in range(place, 0, -1):
            if (path := self._folder / f"own-{earlier}.npy").is_file():
                return npy.read(path)
        learner = self._learner
        return np.zeros((self._held, learner.length), learner.initial().numpy().dtype)


def cast_votes(run: Run) -> np.ndarray:
    """Return the votes of a party's teachers, which are trained if necessary."""
    teach.extract_features.fn(run)
    for group in teach.groups(run):
        teach.train_group.fn(run, group)
    teach.collect_teachers.fn(run)
    vote.collect_votes.fn(run)
    return read_votes(run.folders)


def own_records(own: OwnTeachers, terms: Terms, held: int) -> Records:
    """Return the party's records, whose sums are reported. Raises the same errors as `report_source`."""
    run = prepare_run(own, terms, held)
    if (length := query_features(run, "original").shape[1] + 1) != terms.length:
        raise InputError(
            f"{own.backbone} gives vectors of {length} coordinates, and the terms have {terms.length}. Get the "
            "backbone from the proposing party."
        )
    return load_summed_records(run)


def open_run(own: OwnTeachers, terms: Terms, held: int) -> Run:
    """Return the run of a party's own stages."""
    return Run(own.work, "own", own_params(own, terms, held))


def prepare_run(own: OwnTeachers, terms: Terms, held: int) -> Run:
    """Check the public inputs, read and partition the party's data; return the run."""
    terms.check_version()
    run = open_run(own, terms, held)
    check_public(own.images, own.backbone, terms)
    link(own.images, run.folders.images)
    link(own.backbone, run.folders.backbone)
    dataset.write_prepared(run, load_dataset(run).with_classes(terms.class_names))
    partition.deal_records.fn(run)
    return run


def own_params(own: OwnTeachers, terms: Terms, held: int) -> Params:
    """Return the parameters of a party's own stages, with the teachers and the image geometry of the terms.

    Raises:
        SettingError: A setting is unknown, impossible, fixed by the terms, or differs from them.
    """
    if foreign := [section for section in own.params if section not in _SECTIONS]:
        raise SettingError(
            f"own.params.{foreign[0]} is not a teacher party's to set: it has {', '.join(_SECTIONS)}. The terms decide "
            "what is released, and how."
        )
    given = own.params.get("partition", {}).get("teachers", held)
    if given != held:
        raise SettingError(f"own.params.partition.teachers={given}, and the terms say this party holds {held}.")
    # Parameters require two teachers; a party may hold one.
    fixed: dict[str, Any] = {"data": _agreed_data(terms, own.params.get("data", {}))}
    fixed |= {"partition": {"teachers": max(held, 2)}} | _agreed_teachers(own, terms)
    fixed |= backbone_params(own.backbone, own.params.get("backbone"))
    params = validate(merge(merge(_LEDGER, own.params), fixed))
    if (reason := params.teachers.party_restriction) is not None:
        raise SettingError(f"own.params: {reason}.")
    if params.teachers.averages and terms.averages is None:
        raise SettingError(
            "own.params.teachers.averaging=global: teachers learn from those of other parties, and the terms do not "
            "say how. Propose terms with these teachers (terrine party propose), or take another kind."
        )
    if params.data.scale is not None:
        raise SettingError("own.params.data: terms name classes and no order. Leave out grades and bins.")
    return params.model_copy(update={"partition": params.partition.model_copy(update={"teachers": held})})


def _agreed_teachers(own: OwnTeachers, terms: Terms) -> dict[str, Any]:
    """Return the agreed training of teachers, or an empty dict; refuse settings of the party that differ."""
    agreed = terms.teaching
    if agreed is None:
        return {}
    given = flat({key: value for key, value in own.params.items() if key in ("seed", "teachers")})
    known = flat(agreed.model_dump(mode="json"))
    for key, value in given.items():
        if key != "teachers.per_task" and known.get(key) != value:
            wanted = f"say {known[key]!r}" if key in known else f"have no such setting of {known['teachers.kind']}"
            raise SettingError(
                f"own.params.{key}={value!r}, and the terms {wanted}: all parties train their teachers alike. Leave it "
                "out, or agree on other terms."
            )
    own_choice = {key: value for key, value in (own.params.get("teachers") or {}).items() if key == "per_task"}
    return {"seed": agreed.seed, "teachers": {**agreed.teachers, **own_choice}}


def backbone_params(folder: Path, given: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the parameters of the backbone in a folder; empty until it exists.

    Args:
        folder: The public backbone.
        given: The party's own section `backbone`.

    Raises:
        SettingError: The section names another kind.
    """
    path = folder / BACKBONE
    if not path.is_file():
        return {}
    kind = read_description(path)["kind"]
    if (named := (given or {}).get("kind", kind)) != kind:
        raise SettingError(
            f"own.params.backbone.kind={named}, and {path} holds one of kind {kind}. Leave own.params.backbone out."
        )
    # The backbone exists, so its pretraining is not used.
    weights = {"weights": "initial"} if "weights" in ARCHITECTURES.of(kind).model_fields else {}
    return {"backbone": {"kind": kind, **weights}, "pretraining": {"images": {"count": 2, "sources": {"gaussian": 1}}}}


def _agreed_data(terms: Terms, data: dict[str, Any]) -> dict[str, Any]:
    """Return size, channels, fit and window of the terms, or columns of a table; refuse differing `data` settings.

    Settings that the party's kind of data does not have are left out.
    """
    kind = SOURCES.of(data["name"]) if data.get("name") in SOURCES.names() else Source
    agreed = {key: getattr(terms, key) for key in ("size", "channels") if getattr(terms, key) is not None}
    agreed |= {key: getattr(terms, key) for key in ("fit", "window") if key in kind.model_fields}
    if terms.table is not None:
        agreed |= {"name": "table", **terms.table.model_dump(mode="json")}
    for key, value in agreed.items():
        given = _normalise(key, data.get(key, value))
        if given != value:
            pair = (list(one) if isinstance(one, tuple) else one for one in (given, value))
            here, there = ("null" if one is None else one for one in pair)
            raise SettingError(
                f"own.params.data.{key}={here}, and the terms say {there}: all parties read their records alike. "
                f"Set it to {there}, or leave it out."
            )
    return {key: in_json(value) if key == "size" else value for key, value in agreed.items()}


def _normalise(key: str, value: Any) -> Any:
    if key == "size" and is_size(value):
        return as_size(value)
    if key == "window" and isinstance(value, str):
        from terrine.data.sources.dicom import window_limits

        return window_limits(value)
    return tuple(value) if key == "window" and isinstance(value, list) else value
