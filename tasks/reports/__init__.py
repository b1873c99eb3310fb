"""Pages for people: charts, pictures, statements and summaries."""
