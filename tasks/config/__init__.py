"""Typed parameters of params.yaml, and the presets that supply them."""
