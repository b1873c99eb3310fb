"""Artefacts of a run as several stages read and write them; no stage is imported here."""
