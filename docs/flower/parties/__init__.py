"""A Terrine collaboration whose steps Flower starts at all parties."""
