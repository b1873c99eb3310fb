"""Terms, keys, services and uploads of a collaboration."""
