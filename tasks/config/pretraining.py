"""The section `pretraining`: SimCLR on synthetic images."""

from __future__ import annotations

from tasks.config.queries import Images
from terrine.pretraining.settings import SimCLRSettings


class Pretraining(SimCLRSettings):
    """SimCLR on synthetic images (ignored by a backbone without weights)."""

    images: Images | None = None
    """What the backbone is trained on: how many images, from which programs. Needed where it is trained here."""
