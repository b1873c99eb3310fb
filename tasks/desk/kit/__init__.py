"""Files that go into every airlock kit."""
