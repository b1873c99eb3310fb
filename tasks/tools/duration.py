"""Estimate a run's duration from the number of images whose features it computes, which takes most of the time."""

from __future__ import annotations

from tasks.config.params import Params
from terrine.data.source import Survey
from terrine.geometry import Size, pixels, sides

START = 60.0
"""Seconds of a run that do not depend on images."""
STATISTICS, PROJECTION, REFERENCE = 4_000, 8_000, 2_000
"""Largest numbers of queries used for the backbone's statistics, for learning the projection from deformed pairs, and
for choosing reference images."""
DENSE, LARGEST_DENSE = 1e-6, 32
"""Processor seconds per pixel of the scattering transform, and largest side of images that matrix products transform;
larger images use FFTs (`terrine.models.wavelets`)."""
LARGE, TRANSFORMED, BORDER = 2.6e-3, 4.4e-7, 28
"""For larger images: processor seconds per image and per pixel, and width of the mirrored border that is included."""

SHARED = 1.4
"""Factor for deformations, other work on features, and stages that use one core. A run with voting teachers on 1,998
photographs of 64 pixels needs 783 processor seconds and took 492 s on two cores; its estimate is 425 s."""


def estimate_minutes(params: Params, survey: Survey, queries: int | None) -> float | None:
    """Return the approximate duration of a run in minutes on two cores, or None for backbones that were not measured.

    Args:
        params: Parameters of the run.
        survey: Counts of its data.
        queries: Number of queries; None if it is unknown.
    """
    if params.data.name == "table":
        return START / 60
    if queries is None or params.backbone.kind != "scattering" or params.teachers.inputs != "features":
        return None
    records, tested = survey.records
    images = records * (2 if params.privacy.moments else 1)
    images += tested * (2 if params.student.statistics == "current" else 1)
    images += queries + min(queries, STATISTICS) + min(queries, REFERENCE)
    if params.backbone.learns_projection:
        images += 2 * min(queries, PROJECTION)
    return (START + SHARED * images * params.data.channels * image_seconds(params.data.size) / 2) / 60


def image_seconds(size: Size) -> float:
    """Return the processor seconds of the scattering transform for one channel of an image."""
    height, width = sides(size)
    if max(height, width) <= LARGEST_DENSE:
        return DENSE * pixels(size)
    return LARGE + TRANSFORMED * (height + BORDER) * (width + BORDER)
