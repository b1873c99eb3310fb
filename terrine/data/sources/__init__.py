"""Data sources, one per file."""
