"""Terms that follow from a run's parameters and its public inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tasks.artefacts.features import query_features
from tasks.artefacts.images import read_backbone
from tasks.parties.agreement.reading import how_read
from tasks.parties.agreement.terms import Teaching, Terms, certain, checked, of_one
from tasks.runtime.run import Run
from tasks.runtime.store import read_json
from terrine.aggregation.fixed_point import FixedPoint
from terrine.aggregation.sums import mu_left
from terrine.errors import BudgetError
from terrine.files import file_digest
from terrine.teachers.averaging.averaged import AveragedTeachers
from terrine.teachers.averaging.private import calibrated
from terrine.teachers.averaging.shared import SharedAverages
from terrine.teachers.base import TeacherContext


def agreed(
    run: Run,
    teachers: Mapping[str, int],
    *,
    class_names: Sequence[str],
    minimum: int | None = None,
    edition: str = "",
    overlap: int = 1,
    records: int | None = None,
    teaching: Teaching | None = None,
    **others: Any,
) -> Terms:
    """Return terms for parties that hold so many teachers each, about the queries of a run, whose images are drawn and
    whose backbone is made.

    They ask as many queries as the budget is sure to pay for. Of somebody whose data are at `overlap` parties noise
    hides so many units at once (`Terms.event`), so a budget μ pays for what μ / overlap would pay for otherwise. Of
    teachers that average, averages take their share of it first.

    minimum, records: see `Terms`; None for all teachers, and for as many records as shares hold. teaching: how teachers
    are trained; None where every party says that for itself. others: more fields of the terms.

    Raises BudgetError where the budget pays for no answer, and SettingError for terms that no collaboration could have.
    """
    settings, total = run.params.aggregation, sum(teachers.values())
    images = read_json(run.folders.images / "manifest.json")
    shards = images["shards"]["queries"]
    about: dict[str, Any]
    if settings.reveals == "sums":
        length = query_features(run, "original").shape[1] + 1
        course = settings.course(mu_left(settings.epsilon, settings.delta) / overlap)
        said = {key: value for key, value in asdict(course).items() if key in Terms.model_fields}
        about = {key: value for key, value in said.items() if course.rounds or key == "sigma"}
        most = FixedPoint(length, len(class_names), course).most_units // total
        about |= {"length": length, "records": records or most, "mechanism": settings.mechanism}
        queries = asked = 1
    else:
        queries = sum(shard["count"] for shard in shards)
        averages = None if teaching is None else _averages(run, teaching, total, len(class_names), overlap)
        about = settings.describe() | about_averages(averages)
        asked = certain(settings, queries, settings.epsilon, settings.delta, overlap, averages)
        if teaching is not None:
            about["teaching"] = teaching.model_dump(mode="json")
    if asked == 0:
        raise BudgetError(
            f"aggregation.epsilon={settings.epsilon:g} does not pay for one answer with this noise. Raise it, or use "
            "more noise. Nothing was drawn and nothing was charged."
        )
    return checked(
        {
            **others,
            "teachers": dict(teachers),
            "unit": run.params.privacy.unit,
            "overlap": overlap,
            "minimum": minimum or total,
            "queries": queries,
            "asked": asked,
            "queries_digest": file_digest(run.folders.images / "manifest.json"),
            "query_shards": [shard["sha256"] for shard in shards],
            "size": images.get("size"),
            "channels": images.get("channels"),
            **how_read(run.params.data),
            "backbone": file_digest(run.folders.backbone / "backbone.safetensors"),
            "class_names": list(class_names),
            **about,
            "epsilon": settings.epsilon,
            "delta": settings.delta,
            "edition": edition,
        }
    )


def about_averages(averages: SharedAverages | None) -> dict[str, Any]:
    """Return what terms say of averages; nothing where there are none."""
    if averages is None:
        return {}
    about = {"noise_multiplier": averages.averaging.noise_multiplier, "weights": averages.weights}
    return about | ({"features": averages.features} if averages.features else {})


def _averages(run: Run, teaching: Teaching, total: int, classes: int, overlap: int) -> SharedAverages | None:
    """Return the averages of all parties' teachers, with the noise that their share of the budget buys; None where
    teachers learn each by itself."""
    settings, budget = teaching.settings, run.params.aggregation
    if not isinstance(settings, AveragedTeachers) or not settings.releases_averages:
        return None
    data, backbone = run.params.data, read_backbone(run.folders)
    context = TeacherContext(classes, data.channels, data.size, lambda: backbone, seed=teaching.seed, parties=total)
    learner = settings.learner_of(context)
    averaging = calibrated(settings, epsilon=of_one(budget.epsilon, budget.delta, overlap), delta=budget.delta)
    return SharedAverages(averaging, total, learner.length, backbone.feature_dim if averaging.centred else 0)
