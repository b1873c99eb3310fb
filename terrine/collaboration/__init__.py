"""Institutions vote together: secret shares, a guardian that adds the noise, a garbled circuit that opens labels."""

import os

# Before gRPC is loaded: its library writes every refused handshake to standard error, in words of its own.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
