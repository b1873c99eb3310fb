"""What a release costs: events that describe it, and accountants that price them."""
