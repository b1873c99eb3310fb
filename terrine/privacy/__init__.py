"""Differential privacy: accounting of releases, sources of noise, the ledger, audits and privacy statements."""
