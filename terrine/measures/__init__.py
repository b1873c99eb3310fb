"""Metrics of a classifier with 95 % intervals: in `classes` for classes, and in `order` for ordered classes."""

from terrine.measures.classes import (
    auc,
    balanced_accuracy,
    calibration_error,
    macro_auc,
    measures,
    odds,
    rate,
    sensitivity_at,
)
from terrine.measures.intervals import Measured, as_json

__all__ = [
    "Measured",
    "as_json",
    "auc",
    "balanced_accuracy",
    "calibration_error",
    "macro_auc",
    "measures",
    "odds",
    "rate",
    "sensitivity_at",
]
