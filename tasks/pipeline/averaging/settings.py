"""How teachers learn from one another in a run: what their kind looks at, the noise on averages, what it will cost."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from tasks.config.params import Params
from terrine.privacy.accounting.events import Event, NonPrivateEvent, compose
from terrine.teachers.averaging.private import PrivateAveraging, calibrated
from terrine.teachers.registry import TeacherSettings

_NOT_SETTINGS_OF_A_KIND = {
    "per_task",
    "feature_batch",
    "estimator",
    "prompt",
    "mode",
    "clip",
    "budget_share",
    "control_release",
}


def teacher_settings(params: Params) -> TeacherSettings:
    """Return what the kinds of teachers look at."""
    settings = params.teachers
    own = settings.model_dump(exclude=_NOT_SETTINGS_OF_A_KIND)
    return TeacherSettings(
        **own,
        estimator=settings.estimator.name,
        options=settings.estimator.options,
        prompt=settings.prompt.model_dump(),
    )


def private_averaging(params: Params) -> PrivateAveraging | None:
    """Return how the averages are made private, with the noise that the share of the budget buys; None without any."""
    teachers = params.teachers
    if not teachers.releases_averages:
        return None
    assert teachers.clip is not None
    assert teachers.budget_share is not None
    return calibrated(
        teacher_settings(params).averaged(),
        clip=teachers.clip,
        control=teachers.control_release,
        centred=teachers.centre == "shared",
        epsilon=params.aggregation.epsilon,
        delta=params.aggregation.delta,
        share=teachers.budget_share,
    )


def planned_event(params: Params) -> Event:
    """Return what the averages of a run will cost, from parameters alone; nothing where nothing is averaged."""
    if params.teachers.unprotected:
        return NonPrivateEvent()
    averaging = private_averaging(params)
    if averaging is None:
        return compose()
    return averaging.whole_event(teacher_settings(params).averaged())


def describe(averaging: PrivateAveraging | None) -> dict[str, Any]:
    """Return the parameters of the noise as JSON values, None each where there is none."""
    if averaging is None:
        return dict.fromkeys(("clip", "noise_multiplier", "control", "centred"))
    described = asdict(averaging)
    assert all(math.isfinite(described[name]) for name in ("clip", "noise_multiplier"))
    return described
