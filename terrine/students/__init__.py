"""Students: models that see synthetic images and released answers only."""
