"""Model transcription (001_39f11e6b4a342aad): from a trained model to a private student, by way of a generator."""
