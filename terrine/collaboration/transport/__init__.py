"""Frames between parties: certificates, links that survive broken connections, streams under mutual TLS."""
