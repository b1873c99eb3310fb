"""Rivals: what others do with the same records, and what tables compare with."""
