"""Protocol of a collaboration, without network or files: reports, their proofs, and the joint computation."""
