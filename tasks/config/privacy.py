"""The section `privacy`: whose privacy is protected."""

from __future__ import annotations

from typing import Literal

from terrine.settings import Settings


class Privacy(Settings):
    """Whose privacy is protected."""

    unit: Literal["record", "group"] = "record"
    """`record`: one image. `group`: all images with the same group value (a patient); needs groups in the data."""
