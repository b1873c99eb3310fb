"""The architectures of backbones: their settings, one kind a file."""
