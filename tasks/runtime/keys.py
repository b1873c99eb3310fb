"""The site's secrets: in the private zone, one key from which keyed digests are made, and one that signs statements.

A plain hash of private data is a fingerprint anybody can compare with a guess. Fingerprints, partition hashes and
release identities are HMACs, and their key never leaves data/private/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.runtime.run import Run
from tasks.runtime.store import close_private_zone
from terrine.privacy.ledger.identity import load_or_create_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SIGNING = "signing.pem"
"""The site's signing key, beside its key for digests (`ledger.key`)."""


def site_key(run: Run) -> bytes:
    """Return the site's key, made on first use with the operating system's randomness (file mode 0600)."""
    close_private_zone(run.root)
    return load_or_create_key(run.path(run.params.ledger.key))


def site_signing_key(run: Run) -> Ed25519PrivateKey:
    """Return the key that the site signs statements with, made on first use like the other one."""
    from terrine.deployment.signature import signing_key

    close_private_zone(run.root)
    return signing_key(run.path(run.params.ledger.key).with_name(SIGNING))
