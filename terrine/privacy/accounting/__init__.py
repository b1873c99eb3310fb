"""Privacy accounting: events that describe releases, and accountants that price them."""
