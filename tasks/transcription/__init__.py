"""Model transcription: from teachers that hold private data to a private student, by way of a generator."""
