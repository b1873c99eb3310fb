"""Figures of a run's evaluation: private ones, the released accuracy, and DVC's tables."""
