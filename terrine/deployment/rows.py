"""Loading and prediction of a table's student: rows with the table's columns in, class names and probabilities out.

    >>> model = TableStudent.load(Path("data/release/your-own-table/student"))
    >>> model.answers(pandas.read_csv("rows.csv"))      # a data frame: class, probability, probability of each class

The encoding of columns as features is in the student's folder (`encoding.json`), covered by its manifest. The encoding
was declared, or learned from public rows only (`terrine.data.encoding`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from terrine.data.encoding import Encoding
from terrine.deployment.manifest import check_seal
from terrine.deployment.model import StudentModel
from terrine.errors import ArtefactError, InputError, first_line, some

if TYPE_CHECKING:
    import pandas as pd

ENCODING = "encoding.json"
"""File with the encoding of columns, and the columns that are not features."""


class TableStudent:
    """The student of a table and the encoding of its columns. A prediction depends on its row only.

    Args:
        student: The student of encoded rows.
        encoding: The encoding.
        roles: Names of the `target` column, the `id` column or None, and all columns that are not features.
    """

    def __init__(self, student: StudentModel, encoding: Encoding, roles: dict[str, Any]) -> None:
        if len(encoding.names) != student.channels:
            raise ArtefactError(
                f"The student's parts do not fit together: its columns become {len(encoding.names)} features, and it "
                f"takes {student.channels}."
            )
        self.student, self.encoding = student, encoding
        self.target: str = roles["target"]
        self.id: str | None = roles["id"]
        self._no_features: list[str] = roles["roles"]

    @classmethod
    def load(cls, folder: Path, *, device: torch.device | str = "cpu") -> TableStudent:
        """Load the student in `folder`; see `StudentModel.load`.

        Raises:
            ArtefactError: The student is damaged or has no encoding.
        """
        folder = Path(folder)
        if ENCODING not in check_seal(folder)["digests"]:
            raise ArtefactError(
                f"The student in {folder} carries no {ENCODING}, so it does not take rows of a table. Run the stage "
                "'student' again."
            )
        # Features of a table have no batch statistics, so the kind does not matter.
        student = StudentModel.load(folder, "original", device=device)
        try:
            values = json.loads((folder / ENCODING).read_text(encoding="utf-8"))
            return cls(student, Encoding.from_description(values["columns"]), values)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ArtefactError(
                f"{folder / ENCODING} does not say how columns are encoded ({first_line(error)}). Get the folder again "
                "from where it was published, or run the stage 'student' again."
            ) from error

    @property
    def class_names(self) -> list[str]:
        """Classes in the order of the probabilities."""
        return self.student.class_names

    def predict(self, rows: pd.DataFrame, where: str = "The table", unit: str = "row") -> np.ndarray:
        """Return class probabilities, float32 [rows, classes].

        Missing numbers and unknown words set no feature.

        Args:
            rows: Rows with the columns of the training, in any order; other columns are ignored.
            where: Name of the table for error messages (`Encoding.apply`).
            unit: Name of a row for error messages.

        Raises:
            InputError: The rows cannot be encoded.
        """
        if len(rows) == 0:
            raise InputError(f"{where} has no rows. Send at least one.")
        return self.student.predict(self.encoding.apply(rows, where, unit))

    def answers(self, rows: pd.DataFrame, where: str = "The table", unit: str = "row") -> pd.DataFrame:
        """Return predictions with class names (`StudentModel.answers`); see `predict` for the arguments."""
        return self.student.answers(self.predict(rows, where, unit), rows.index)

    def shapes(self) -> pd.DataFrame | None:
        """Return the contribution of each column to the scores, or None if the head is not linear.

        The scores of a row, whose softmax is its probabilities, are the row `(intercept)` plus one contribution for
        each column: that of its word, or of its number by linear interpolation between knots. A missing value
        contributes 0.

        Returns:
            A data frame with columns `column`, `value` (a knot or a word) and `score of CLASS` for each class.
        """
        import pandas as pd

        head = self.student.network.head
        if not isinstance(head, torch.nn.Linear):
            return None
        values = [(column.name, value) for column in self.encoding.columns for value in column.values or column.knots]
        shapes = pd.DataFrame([("(intercept)", ""), *values], columns=["column", "value"])
        scores = torch.cat([head.bias[None], head.weight.T]).numpy(force=True)
        return shapes.assign(**{f"score of {name}": scores[:, k] for k, name in enumerate(self.class_names)})

    def notes(self, rows: pd.DataFrame) -> list[str]:
        """Return sentences about ignored columns, unknown words and numbers outside the known range."""
        known = {column.name for column in self.encoding.columns}
        extra = [str(name) or "(no name)" for name in rows if name not in known and name not in self._no_features]
        notes = [f"Ignored columns, which the student does not know: {some(extra)}."] if extra else []
        return [*notes, *(sentence for sentence, _ in self.encoding.unknown(rows))]

    def about(self) -> list[dict[str, Any]]:
        """Return name, type and known words of each column."""
        return [
            {"name": column.name, "type": "number"}
            if column.values is None
            else {"name": column.name, "type": "text", "values": list(column.values)}
            for column in self.encoding.columns
        ]


def takes_table(folder: Path) -> bool:
    """Return whether the student in `folder` takes rows of a table."""
    return ENCODING in cast(dict[str, Any], check_seal(folder)["digests"])
