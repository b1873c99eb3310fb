"""Empirical privacy auditing: lower bounds on the privacy loss of implementations, and attacks on trained models."""
