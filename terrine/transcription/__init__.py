"""Model transcription (DPSD, Liu et al. 2026): from a trained model to a private student, via a generator."""
