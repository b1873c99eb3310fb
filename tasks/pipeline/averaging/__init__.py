"""Teachers that learn from one another: their rounds, what the rounds leave behind, and what they cost."""
