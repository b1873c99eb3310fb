"""What goes with several findings at once (`data.findings`): one table, asked before anything runs."""

from __future__ import annotations

from typing import Any

from terrine.aggregation.mechanism import Aggregation
from terrine.errors import SettingError

MEANT_FOR_CLASSES: dict[str, tuple[Any, ...]] = {
    "partition.kind": ("iid",),
    "queries.select": ("order",),
    "queries.rounds": (1,),
    "teachers.kind": ("linear",),
    "aggregation.mechanism": ("histogram", "gnmax", "confident", "lnmax", "moments", "gradients"),
    "aggregation.where": ("local",),
    "student.kind": ("linear", "sums"),
    "evaluation.epsilon": (None,),
    "evaluation.subgroups": (None,),
    "transcription": (None,),
}
"""Settings, and what they may be: everything else is made for records that are of one class each."""


def check_findings(run: Any) -> None:
    """Raise ValueError where several findings do not go with other settings of the run, or their bound with none."""
    bound = run.aggregation.findings_bound
    if bound is not None and run.aggregation.reveals == "sums":
        raise ValueError(
            f"aggregation.findings_bound={bound} is for teachers that vote, and aggregation.mechanism="
            f"{run.aggregation.mechanism} adds up records (auto takes it where one record is protected). Leave it out, "
            "or have teachers vote: aggregation.mechanism=histogram"
        )
    if bound is not None and not run.data.several:
        raise ValueError(
            f"aggregation.findings_bound={bound} is for teachers that vote on several findings (data.findings). Leave "
            "it out"
        )
    if not run.data.several:
        return
    for key, known in MEANT_FOR_CLASSES.items():
        value = run
        for name in key.split("."):
            value = getattr(value, name)
        if value not in known:
            shown = f"{key}={value}" if isinstance(value, str | int | float) else key
            allowed = ", ".join("null" if each is None else str(each) for each in known)
            raise ValueError(
                f"{shown} is made for records of one class each and does not go with data.findings. Set {key} to "
                f"{allowed}, or leave out data.findings"
            )


def refuse_findings(mechanism: Aggregation, what: str) -> None:
    """Raise SettingError where an attack that is made for records of one class each meets several findings.

    what: the attack's command.
    """
    if mechanism.findings > 1:
        raise SettingError(
            f"{what} attacks answers about one class of many, and this run has several findings (data.findings): they "
            "have no such attack."
        )
