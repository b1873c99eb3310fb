"""Labels of records that may have several findings at once, as users write them and as numbers of 0 and 1.

A dataset's labels are int64 [N], one class each, or int64 [N, K], for each of K findings whether a record has it; its
class names are then the findings'. What counts labels by class reads either through `labelled`.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from pydantic import Field, field_validator

from terrine.errors import InputError
from terrine.settings import Settings

SEPARATORS = re.compile(r"[;|]")
"""Between the findings of one cell; NIH's ChestX-ray14 has the latter."""
_NAMED = 20
_YES, _NO = {"1", "1.0", "true", "yes"}, {"0", "0.0", "false", "no", ""}


def are_names(value: tuple[str, ...]) -> bool:
    """Return whether these are two or more distinct names, or none."""
    return len(value) != 1 and len(set(value)) == len(value) and all(name.strip() == name != "" for name in value)


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
"""Settings, and what they may be with several findings: everything else is made for one class a record."""


class SeveralFindings(Settings):
    """Settings of sources whose records may have several findings at once."""

    findings: tuple[str, ...] = Field(())
    """Names of two or more findings that a record may have at once. Teachers vote on each, and the student predicts the
    probability of each (docs/targets.md). Empty: every record has one class."""

    @field_validator("findings")
    @classmethod
    def _two_distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not are_names(value):
            raise ValueError(
                f"{list(value)} are not two or more names, all distinct. Of one finding alone, make classes: a label "
                "such as `yes` or `no`"
            )
        return value

    def check(self, run: Any) -> None:
        """Raise ValueError if several findings do not go with other settings of the run."""
        for key, known in MEANT_FOR_CLASSES.items() if self.findings else ():
            value = attrgetter(key)(run)
            if value not in known:
                shown = f"{key}={value}" if isinstance(value, str | int | float) else key
                allowed = ", ".join("null" if each is None else str(each) for each in known)
                raise ValueError(
                    f"{shown} is made for records of one class each and does not go with data.findings. Set {key} to "
                    f"{allowed}, or leave out data.findings"
                )
        super().check(run)


def on_combinations(class_names: Sequence[str]) -> tuple[str, ...]:
    """Return what speaks against classes that look like several findings of a record, whose parts occur elsewhere."""
    parts = [[part.strip() for part in SEPARATORS.split(name)] for name in class_names]
    times = Counter(part for own in parts for part in {*own})
    several = [name for name, own in zip(class_names, parts, strict=True) if len({*own} - {""}) > 1]
    findings = sorted({part for own in parts if len(own) > 1 for part in own} - {""})
    if not several or max(times[name] for name in findings) < 2:
        return ()
    named = ", ".join(findings[:_NAMED]) + (", ..." if len(findings) > _NAMED else "")
    return (
        f"{len(several)} of {len(class_names)} classes, such as '{several[0]}', look like several findings of one "
        f"image. Name the findings: data.findings=[{named}] (docs/targets.md). To go on all the same: "
        "--anyway.",
    )


def labelled(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return every pair of a record and a class that it has, int64 [pairs] each: one of each record, or its findings.

    labels: int64 [N], or of several findings [N, K].
    """
    if labels.ndim == 1:
        return np.arange(len(labels)), labels
    records, findings = np.nonzero(labels)
    return records, findings


def counts_by_class(labels: np.ndarray, classes: int) -> np.ndarray:
    """Return how many records have each class or finding, int64 [classes]."""
    return np.bincount(labelled(labels)[1], minlength=classes)


def encode_findings(
    labels: Mapping[str, np.ndarray], names: Sequence[str] | None, wanted: Sequence[str], where: str
) -> dict[str, np.ndarray]:
    """Return the labels of each split as int64 [N, len(wanted)], the columns of the findings that are wanted.

    labels: by the name of an array its values, 0 and 1, [N, columns]. names: of the columns; None: they are those
    wanted. Raises InputError, naming `where` and the array, for other values or shapes and for unknown names.
    """
    known = list(wanted if names is None else names)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InputError(f"{where} has no finding '{unknown[0]}'. It has {', '.join(known)}: correct data.findings.")
    columns = [known.index(name) for name in wanted]
    found = {}
    for array, values in labels.items():
        if values.ndim != 2 or values.shape[1] != len(known):
            raise InputError(
                f"{where}: {array} has shape {list(values.shape)}, and data.findings wants one column for each of "
                f"{len(known)} findings ({', '.join(known)})."
            )
        if values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
            raise InputError(f"{where}: {array} holds other values than 0 (not there) and 1 (there). Correct them.")
        found[array] = values[:, columns].astype(np.int64)
    return found


def findings_in_cell(text: str, wanted: Sequence[str]) -> list[str]:
    """Return which of the findings that are wanted a cell names: "edema;effusion", or none where it is empty."""
    named = {part.strip() for part in SEPARATORS.split(text)}
    return [name for name in wanted if name in named]


def findings_in_columns(cells: Mapping[str, str], wanted: Sequence[str], place: str) -> list[str]:
    """Return which of the findings a row's cells have. Raises InputError, naming `place`, for what is no yes or no."""
    found = []
    for name in wanted:
        text = cells[name].strip().lower()
        if text not in _YES | _NO:
            raise InputError(
                f"{place}: {name} is '{cells[name]}'. A finding is 1 (there), 0 or empty (not there): decide what "
                "anything else is, such as CheXpert's -1 for uncertain."
            )
        if text in _YES:
            found.append(name)
    return found
