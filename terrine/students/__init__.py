"""Students: publishable models that are trained on public queries and released answers only."""
