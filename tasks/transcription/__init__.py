"""Model transcription (DPSD): train a publishable student on a generator's images, from teachers of private data."""
