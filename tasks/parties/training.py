"""A teacher party that holds its own records: it trains its teachers on them and has them vote on the public batch; or
sums over them, where that is what is released.

The teachers are those of a run, trained by the same tasks, in a folder that is the party's alone. From outside come the
query images and the backbone, both public; nothing but votes or sums comes out, and these only as shares.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tasks.artefacts.features import query_features
from tasks.artefacts.records import load_dataset
from tasks.artefacts.teachers import read_votes
from tasks.config.params import Params, validate
from tasks.config.values import flat, merge
from tasks.parties.agreement.reading import pictures_of
from tasks.parties.agreement.terms import Terms
from tasks.parties.config import OwnTeachers
from tasks.pipeline import dataset, partition, sums, teach, vote
from tasks.runtime.run import Run
from tasks.runtime.store import link, read_json
from terrine.aggregation.records import Records
from terrine.errors import InputError, SettingError
from terrine.files import file_digest
from terrine.models.architecture import ARCHITECTURES
from terrine.models.backbone_files import described_in

_RUN = "own"
_SECTIONS = ("seed", "device", "data", "privacy", "partition", "teachers", "backbone", "pretraining", "queries")
# The guardian keeps the ledger and holds the budget; these are never looked at.
_ELSEWHERE: dict[str, Any] = {"ledger": {"account": "kept by the guardian", "epsilon": 1.0}}


def cast_votes(own: OwnTeachers, terms: Terms, held: int) -> np.ndarray:
    """Return the votes of `held` teachers, trained here, on the public batch: unsigned integers [queries, held].

    Votes that were cast before by the same teachers on the same batch are not cast again. Raises InputError for a batch
    or data that are not those of the terms, and SettingError for parameters that a party cannot have.
    """
    return votes_of(prepared(own, terms, held))


def make_ready(own: OwnTeachers, terms: Terms, held: int) -> None:
    """Read and deal the party's records, and compute their features: what rounds of averages begin with."""
    teach.extract_features.fn(prepared(own, terms, held))


def votes_of(run: Run) -> np.ndarray:
    """Return the votes of a party's teachers, trained where that was not done."""
    teach.extract_features.fn(run)
    for group in teach.groups(run):
        teach.train_group.fn(run, group)
    teach.collect_teachers.fn(run)
    vote.collect_votes.fn(run)
    return read_votes(run.folders)


def own_records(own: OwnTeachers, terms: Terms, held: int) -> Records:
    """Return the party's records, of which sums are asked. Raises what `cast_votes` raises."""
    run = prepared(own, terms, held)
    if (length := query_features(run, "original").shape[1] + 1) != terms.length:
        raise InputError(
            f"{own.backbone} gives vectors of {length} coordinates, and the terms say {terms.length}. Get the backbone "
            "from whoever wrote the terms."
        )
    return sums.records_of(run)


def run_of(own: OwnTeachers, terms: Terms, held: int) -> Run:
    """Return the party's own little run."""
    return Run(own.work, _RUN, own_params(own, terms, held))


def prepared(own: OwnTeachers, terms: Terms, held: int) -> Run:
    """Return the party's own little run, its data read and dealt, once they are found to be what the terms say."""
    terms.check_version()
    run = run_of(own, terms, held)
    check_public(own.images, own.backbone, terms)
    link(own.images, run.folders.images)
    link(own.backbone, run.folders.backbone)
    dataset.write_prepared(run, load_dataset(run).with_classes(terms.class_names))
    partition.deal_records.fn(run)
    return run


def own_params(own: OwnTeachers, terms: Terms, held: int) -> Params:
    """Return the parameters of a party's own little run: `held` teachers, each on its own part of the party's records,
    which are brought to the geometry of the terms.

    Raises SettingError naming what is unknown, impossible, not a party's to say, or other than the terms say it.
    """
    strange = [section for section in own.params if section not in _SECTIONS]
    if strange:
        raise SettingError(
            f"own.params.{strange[0]} is not a teacher party's to set: it has {', '.join(_SECTIONS)}. What is "
            "released, and how, stands in the terms."
        )
    given = own.params.get("partition", {}).get("teachers", held)
    if given != held:
        raise SettingError(f"own.params.partition.teachers={given}, and the terms say this party holds {held}.")
    pictures = pictures_of(terms, own.params.get("data", {}))
    fixed: dict[str, Any] = {"data": pictures, "partition": {"teachers": max(held, 2)}}
    fixed |= _agreed_teachers(own, terms) | backbone_at_hand(own.backbone, own.params.get("backbone"))
    # Parameters know of two teachers at least; a party may hold one.
    params = validate(merge(merge(_ELSEWHERE, own.params), fixed))
    if (reason := params.teachers.not_at_parties) is not None:
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
    """Return how teachers are trained as the terms say it; nothing where they leave that to each party.

    Raises SettingError for settings of the party's own that are others.
    """
    agreed = terms.teaching
    if agreed is None:
        return {}
    said = flat({key: value for key, value in own.params.items() if key in ("seed", "teachers")})
    known = flat(agreed.model_dump(mode="json"))
    for key, value in said.items():
        if key != "teachers.per_task" and known.get(key) != value:
            wanted = f"say {known[key]!r}" if key in known else f"have no such setting of {known['teachers.kind']}"
            raise SettingError(
                f"own.params.{key}={value!r}, and the terms {wanted}: all parties train their teachers alike. Leave it "
                "out, or agree on other terms."
            )
    alone = {key: value for key, value in (own.params.get("teachers") or {}).items() if key == "per_task"}
    return {"seed": agreed.seed, "teachers": {**agreed.teachers, **alone}}


def backbone_at_hand(folder: Path, said: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what parameters say of the backbone that a party was given; nothing where there is none yet.

    said: what the party's own parameters say of it. Raises SettingError where that is one of another kind.
    """
    path = folder / "backbone.safetensors"
    if not path.is_file():
        return {}
    kind = described_in(path)["kind"]
    if (named := (said or {}).get("kind", kind)) != kind:
        raise SettingError(
            f"own.params.backbone.kind={named}, and {path} holds one of kind {kind}. Leave own.params.backbone out."
        )
    # It is made, and has its weights: how it came by them, and from which images, is not looked at.
    weights = {"weights": "initial"} if "weights" in ARCHITECTURES.of(kind).model_fields else {}
    return {"backbone": {"kind": kind, **weights}, "pretraining": {"images": {"count": 2, "sources": {"gaussian": 1}}}}


def check_public(images: Path, backbone: Path, terms: Terms) -> None:
    """Raise InputError unless the bytes of query images and backbone are those of the terms."""
    manifest = images / "manifest.json"
    _check_file(manifest, terms.queries_digest)
    names = [shard["file"] for shard in read_json(manifest)["shards"]["queries"]]
    if len(names) != len(terms.query_shards):
        raise InputError(
            f"{manifest} names {len(names)} files of query images, and the terms {len(terms.query_shards)}."
        )
    for name, digest in zip(names, terms.query_shards, strict=True):
        _check_file(images / name, digest)
    _check_file(backbone / "backbone.safetensors", terms.backbone)


def _check_file(path: Path, digest: str) -> None:
    found = file_digest(path) if path.is_file() else "missing"
    if found != digest:
        raise InputError(
            f"{path} is not the file that was agreed on: its SHA-256 is {found[:16]}, the terms say {digest[:16]}. "
            "Nothing was trained. Get it anew from whoever wrote the terms."
        )
