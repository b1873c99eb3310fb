"""Teachers: models that see one private part each and vote."""
