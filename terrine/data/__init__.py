"""Datasets: readers for many formats, splits, digests, and partitions among teachers."""
