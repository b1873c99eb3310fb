"""Who remembers what was released: rows that are only ever added, stored releases, and the one door to more."""
