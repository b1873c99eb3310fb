"""Audits: attack mechanisms, runs and students, and compare the leakage with the charged cost."""
