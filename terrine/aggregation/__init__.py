"""Aggregation mechanisms: noisy answers from votes, and noisy sums over records."""
