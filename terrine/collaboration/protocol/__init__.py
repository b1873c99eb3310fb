"""The parties as state machines without input or output: what they send one another, and when."""
