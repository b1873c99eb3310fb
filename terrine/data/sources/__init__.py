"""Where records come from: one kind of source a file."""
