"""Experiments for a GPU that is there for minutes."""
