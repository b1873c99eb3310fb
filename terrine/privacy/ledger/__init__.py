"""Privacy ledger: append-only records of releases, the stored releases, and the only way to make new ones."""
