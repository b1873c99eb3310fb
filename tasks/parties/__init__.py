"""The parties of a collaboration as processes: their terms, their configuration, their hosts, and trials of them."""
