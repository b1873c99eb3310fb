"""How good a classifier is, figures with 95 % intervals: of classes, here; and `order`, of classes in an order."""

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
