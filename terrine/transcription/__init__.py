"""Model transcription (DPSD, Liu et al. 2026): from a trained model to a private student, by way of a generator."""
