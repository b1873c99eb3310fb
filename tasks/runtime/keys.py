"""The site's secret: one key in the private zone from which keyed digests are made.

A plain hash of private data is a fingerprint anybody can compare with a guess. Fingerprints, partition hashes and
release identities are HMACs, and their key never leaves data/private/.
"""

from __future__ import annotations

from tasks.runtime.run import Run
from tasks.runtime.store import close_private_zone
from terrine.privacy.ledger.identity import load_or_create_key


def site_key(run: Run) -> bytes:
    """Return the site's key, made on first use with the operating system's randomness (file mode 0600)."""
    close_private_zone(run.root)
    return load_or_create_key(run.path(run.params.ledger.key))
