"""Differential privacy: what a release costs, where its noise comes from, and who remembers it."""
