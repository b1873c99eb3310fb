"""Audits: attack mechanisms, runs and students, and compare what leaks with what is charged."""
