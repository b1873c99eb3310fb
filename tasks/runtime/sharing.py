"""A stage that another run of the project has made of the same is not made again: what it made is taken from there.

The same is what DVC compares: settings, code and the content of every artefact that the stage needs. It is asked of
stages that draw no noise for a release and read no source (`Stage.shared`), and of runs on the same data and account.
"""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

from tasks.config.params import Params, read_parameters
from tasks.runtime.graph import Pipeline
from tasks.runtime.run import open_run
from tasks.runtime.store import Folders, link
from tasks.runtime.versioning import is_changed, made_of_the_same
from terrine.errors import TerrineError


def take_over(root: Path, run: str, stage: str, pipeline: Pipeline) -> str | None:
    """Give a run what a stage of another one made of the same, if there is such a run; return its name."""
    if not pipeline[stage].shared:
        return None
    mine = _whose(open_run(root, run).params)
    for other in made_of_the_same(root, run, stage, pipeline):
        try:
            if _whose(read_parameters(Folders(root, other).parameters)) != mine:
                continue
            if is_changed(root, other, stage, pipeline):
                continue
            for artefact in pipeline[stage].makes.split():
                zone, _, name = artefact.partition("/")
                link(Folders(root, other).zone(zone) / name, Folders(root, run).zone(zone) / name)
        except (TerrineError, OSError):
            continue  # of an older version, or made anew at this moment
        return other
    return None


def looked_at(params: Params, stage: str, pipeline: Pipeline) -> str:
    """Return all settings on which what a shared stage makes depends; nothing for one that is not shared.

    Runs in which it is the same make the same, on the same code. Which queries are asked decides nothing before they
    are read: images to pretrain with are of settings of their own.
    """
    if not pipeline[stage].shared:
        return ""
    makers = {artefact: made for made in pipeline.stages for artefact in made.makes.split()}
    found, waiting = {stage}, [pipeline[stage]]
    while waiting:
        for artefact in waiting.pop().needs.split():
            if (maker := makers.get(artefact)) is not None and maker.name not in found:
                found.add(maker.name)
                waiting.append(maker)
    keys = {key for name in found for key in pipeline[name].settings.split()}
    asks = "public/images" in pipeline[stage].needs.split()
    keys = {key for key in keys if asks or not key.startswith("queries.")}
    return repr((stage, _whose(params), [(key, attrgetter(key)(params)) for key in sorted(keys)]))


def _whose(params: Params) -> tuple[object, ...]:
    return params.data, params.privacy.unit, params.ledger
