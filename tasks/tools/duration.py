"""About how long a run will take: by the images that it computes features of, which is most of what it does."""

from __future__ import annotations

from tasks.config.params import Params
from terrine.data.source import Survey
from terrine.geometry import Size, largest, pixels, sides

START = 60.0
"""Seconds of a run that hang on no image."""
STATISTICS, PROJECTION, REFERENCE = 4_000, 8_000, 2_000
"""Queries at most whose features are the backbone's statistics; whose deformed pairs are its projection, where that is
learnt; and that reference images are chosen from."""
DENSE, LARGEST_DENSE = 1e-6, 32
"""Processor seconds of the scattering transform for a pixel, and the longest side of images that are products of
matrices; larger ones are transformed (`terrine.models.wavelets`)."""
LARGE, TRANSFORMED, BORDER = 2.6e-3, 4.4e-7, 28
"""Processor seconds for a larger image, and for each of its pixels with the border that is mirrored outwards."""


def minutes_of(params: Params, survey: Survey, queries: int | None) -> float | None:
    """Return about how long a run will take on two cores; None for backbones of which that was not measured.

    queries: how many there will be; None where that is not known, and matters.
    """
    if params.data.name == "table":
        return START / 60
    if queries is None or params.backbone.kind != "scattering" or params.teachers.inputs != "features":
        return None
    return (START + _passed(params, survey, queries) * params.data.channels * image_seconds(params.data.size) / 2) / 60


def _passed(params: Params, survey: Survey, queries: int) -> int:
    """Return how many images a run with so many queries computes features of, each as often as it does."""
    records, tested = survey.records
    of_records = records * (2 if params.privacy.moments else 1)
    of_tests = tested * (2 if params.student.statistics == "current" else 1)
    of_queries = queries + min(queries, STATISTICS) + min(queries, REFERENCE)
    if params.backbone.learns_projection:
        of_queries += 2 * min(queries, PROJECTION)
    return of_records + of_tests + of_queries


def image_seconds(size: Size) -> float:
    """Return the processor seconds that the scattering transform takes for one channel of an image."""
    if largest(size) <= LARGEST_DENSE:
        return DENSE * pixels(size)
    height, width = sides(size)
    return LARGE + TRANSFORMED * (height + BORDER) * (width + BORDER)
