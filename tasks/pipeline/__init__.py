"""The stages of the pipeline, and what they share."""
