"""The protocol of a collaboration, without input or output: reports, their proofs, and the joint computation."""
