"""Backbones, and the batch statistics they are used with."""
