"""Collaboration: secret-shared votes, noise added by a guardian, and a garbled circuit that reveals labels."""
