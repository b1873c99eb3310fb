"""Garbled circuits and oblivious transfer."""
