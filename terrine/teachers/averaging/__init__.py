"""Teachers that average their weights in rounds before they vote (TTAC)."""
