"""Institutions vote together: secret shares, a guardian that adds the noise, a garbled circuit that opens labels."""
