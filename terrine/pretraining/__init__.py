"""Self-supervised pretraining on synthetic images."""
