"""Queries as stages and pages see them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from terrine.mapped import Rows


@dataclass(frozen=True)
class QuerySet:
    """The query images (or a table's rows) in query order, and the batches whose statistics belong together.

    images: uint8 [queries, C, size, size] or float32 [queries, F]; rows in files are read when they are indexed.
    """

    images: Rows
    batches: list[np.ndarray]
    kinds: list[str]
