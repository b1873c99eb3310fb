"""Stages of the pipeline, and functions that several stages share."""
