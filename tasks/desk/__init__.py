"""The release desk: what an institution needs to approve, hand over and verify a release."""
