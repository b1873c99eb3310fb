"""Model transcription (DPSD): train a publishable student from teachers of private data, with images of a generator."""
