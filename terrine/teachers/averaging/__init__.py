"""Teachers with averaging and correction: parties that learn from one another before they vote."""
