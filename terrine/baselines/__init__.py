"""Published methods that Terrine's own are compared with, on the same data, teachers and exact accounting."""
