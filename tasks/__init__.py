"""The stages of the pipeline: files in, files out."""
