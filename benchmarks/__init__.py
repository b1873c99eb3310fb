"""Measurements of the tables in docs/. A package of its own: Opacus 1.6 installs another one called `benchmarks`."""
