"""Image programs, one per file."""
