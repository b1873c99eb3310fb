"""From votes to a release: one mechanism per file."""
