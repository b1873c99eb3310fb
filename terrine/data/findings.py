"""Labels of records that may have several findings (multi-label data).

Labels are int64 [N], one class per record, or int64 [N, K] of 0 and 1 for K findings, whose names are then the
dataset's class names. `labelled` reads both forms.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field, field_validator

from terrine.errors import InputError, some
from terrine.settings import Settings

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = re.compile(r"[;|]")
"""Separators of the findings in one cell; NIH's ChestX-ray14 uses the second."""
AND = "\n"
"""Separator of the findings of a record in `Record.label`; no cell contains it."""
_YES, _NO = {"1", "1.0", "true", "yes"}, {"0", "0.0", "false", "no", ""}


def are_names(value: tuple[str, ...]) -> bool:
    """Return whether these are two or more distinct names without surrounding spaces."""
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
"""Values that these settings may have with several findings; all others require one class per record."""


class SeveralFindings(Settings):
    """Settings of sources whose records may have several findings."""

    findings: tuple[str, ...] = Field(())
    """Names of two or more findings that a record may have at once. Teachers vote on each, and the student predicts the
    probability of each (docs/targets.md). Empty: every record has one class."""

    @field_validator("findings")
    @classmethod
    def _two_distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not are_names(value):
            raise ValueError(
                f"{list(value)} must be two or more distinct names. For a single finding use classes, such as "
                "`yes` and `no`"
            )
        return value

    def check(self, run: Any) -> None:
        """Raise ValueError if other settings of the run do not support several findings."""
        for key, known in MEANT_FOR_CLASSES.items() if self.findings else ():
            value = attrgetter(key)(run)
            if value not in known:
                shown = f"{key}={value}" if isinstance(value, str | int | float) else key
                allowed = ", ".join("null" if each is None else str(each) for each in known)
                raise ValueError(
                    f"{shown} does not support data.findings. Set {key} to {allowed}, or remove data.findings"
                )
        super().check(run)


def combined_findings(class_names: Sequence[str]) -> tuple[str, ...]:
    """Return a warning if class names look like combinations of other class names (probably multi-label data)."""
    parts = [[part.strip() for part in SEPARATORS.split(name)] for name in class_names]
    times = Counter(part for own in parts for part in {*own})
    several = [name for name, own in zip(class_names, parts, strict=True) if len({*own} - {""}) > 1]
    findings = sorted({part for own in parts if len(own) > 1 for part in own} - {""})
    if not several or max(times[name] for name in findings) < 2:
        return ()
    return (
        f"{len(several)} of {len(class_names)} classes, such as '{several[0]}', look like several findings of one "
        f"image. Name the findings: data.findings=[{some(findings, 20)}] (docs/targets.md). To continue anyway: "
        "--anyway.",
    )


def labelled(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return every pair of a record and one of its classes or findings.

    Args:
        labels: int64 [N] of classes, or [N, K] of findings.

    Returns:
        The indices of the records and of their classes, int64 [pairs] each.
    """
    if labels.ndim == 1:
        return np.arange(len(labels)), labels
    records, findings = np.nonzero(labels)
    return records, findings


def counts_by_class(labels: np.ndarray, classes: int) -> np.ndarray:
    """Return the number of records of each class or finding, int64 [classes]."""
    return np.bincount(labelled(labels)[1], minlength=classes)


def encode_findings(
    labels: Mapping[str, np.ndarray], names: Sequence[str] | None, wanted: Sequence[str], where: str
) -> dict[str, np.ndarray]:
    """Return the columns of the wanted findings, int64 [N, len(wanted)] for each array.

    Args:
        labels: Arrays of 0 and 1, [N, columns], by name.
        names: Finding of each column; None: the columns are the findings in `wanted`.
        wanted: Findings to return.
        where: File name for errors.

    Raises:
        InputError: A value is not 0 or 1, the shape is wrong, or a finding is unknown.
    """
    known = list(wanted if names is None else names)
    if unknown := [name for name in wanted if name not in known]:
        raise InputError(f"{where} has no finding '{unknown[0]}', only {', '.join(known)}. Correct data.findings.")
    columns = [known.index(name) for name in wanted]
    found = {}
    for array, values in labels.items():
        if values.shape[1:] != (len(known),):
            raise InputError(
                f"{where}: {array} has shape {list(values.shape)}. With data.findings it needs one column for each of "
                f"{len(known)} findings ({', '.join(known)})."
            )
        if values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
            raise InputError(f"{where}: {array} must contain only 0 (absent) and 1 (present).")
        found[array] = values[:, columns].astype(np.int64)
    return found


def findings_in_table(frame: "pd.DataFrame", wanted: Sequence[str], table: Path) -> list[str]:
    """Return the findings of each row, joined by `AND`, from one column per finding or from the column `label`.

    Raises:
        InputError: a finding's cell is neither yes nor no.
    """
    if not set(wanted) <= set(frame):
        parts = [{part.strip() for part in SEPARATORS.split(text)} for text in frame["label"]]
        return [AND.join(name for name in wanted if name in own) for own in parts]
    for name in wanted:
        unclear = frame[name][~frame[name].str.lower().isin(_YES | _NO)]
        if len(unclear):
            raise InputError(
                f"{table}, line {unclear.index[0]}: {name} is '{unclear.iloc[0]}'. A finding is 1 (present), 0 or "
                "empty (absent): decide about anything else, such as CheXpert's -1 for uncertain."
            )
    present = np.stack([frame[name].str.lower().isin(_YES) for name in wanted], axis=1)
    return [AND.join(name for name, yes in zip(wanted, row, strict=True) if yes) for row in present]
