"""params.yaml, typed: a file for each section, and the presets that fill it."""
