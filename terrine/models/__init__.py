"""Backbones: feature extractors, their weights, and statistics of batch normalisation."""
