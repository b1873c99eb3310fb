"""Guided queries: made in rounds while a release is made, and voted on in the private zone."""
