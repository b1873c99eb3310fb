"""Pictures inside a page: images and heat maps as PNG data URIs, and the contact sheet of labelled queries."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from PIL import Image

from tasks.reports.charts import sparkline
from terrine.data.label_mix import row_shares
from terrine.queries import Queries

LONGEST = 160
"""Pixels of an embedded picture: enough for a sharp tile, and hundreds of them stay a small page."""

PER_SOURCE = 24
WIDEST_SPARKLINE = 40
"""Above this many classes a sparkline's bars would be thinner than a pixel."""

DIAGONAL, ERROR = (37, 99, 170), (200, 92, 28)
"""Colours of right and wrong answers in a confusion matrix."""


def png_data_uri(pixels: np.ndarray) -> str:
    """Return uint8 [height, width] or [height, width, 3] as a PNG in a data URI."""
    return _encode(Image.fromarray(np.ascontiguousarray(pixels)))


def image_data_uri(image: np.ndarray, longest: int = LONGEST) -> str:
    """Return one image, uint8 [channels, height, width] with 1 or 3 channels, reduced to `longest` pixels if larger.

    Small images keep their pixels: the page enlarges them without smoothing.
    """
    pixels = image[0] if image.shape[0] == 1 else image.transpose(1, 2, 0)
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    if max(picture.size) > longest:
        picture.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    return _encode(picture)


def _encode(picture: Image.Image) -> str:
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def confusion_colours(confusion: np.ndarray) -> np.ndarray:
    """Return the colour of every cell of a confusion matrix, int64 [true, predicted, 3] in 0..255, from white on.

    A cell is the darker the larger its share of its row; right answers and errors have colours of their own.
    """
    right = np.eye(len(confusion), dtype=bool)[..., None]
    colour = np.where(right, np.array(DIAGONAL), np.array(ERROR))
    # The square root lets rare errors show in a matrix of many classes.
    mixed = 255 + (colour - 255) * np.sqrt(row_shares(confusion))[..., None]
    return np.rint(mixed).astype(np.int64)


def white_reads_better(colours: np.ndarray) -> np.ndarray:
    """Return whether white text on each colour, [..., 3] in 0..255, has more contrast than black (WCAG 2.2)."""
    parts = np.asarray(colours) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    luminance = linear @ np.array([0.2126, 0.7152, 0.0722])
    return 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05


@dataclass(frozen=True)
class Picture:
    """A query with what was released about it."""

    query: int
    uri: str
    label: str | None
    spark: Markup | None


@dataclass(frozen=True)
class ContactSheet:
    """Some queries of one source."""

    kind: str
    queries: int
    asked: int
    answered: int
    pictures: list[Picture]


def contact_sheets(
    queries: Queries,
    answered: np.ndarray,
    labels: np.ndarray,
    asked: np.ndarray,
    class_names: list[str],
    noisy: np.ndarray | None = None,
    per_source: int = PER_SOURCE,
) -> list[ContactSheet]:
    """Return one sheet per image source: queries spread evenly over those asked, sorted by the label they got.

    answered, asked: bool [queries], `asked` before the budget ended. labels: int64 [queries]; looked at where answered.
    class_names: by label. noisy: float [queries, classes] noisy histograms if they were released.
    """
    sheets = []
    for kind, own in queries.by_source().items():
        looked_at = own[asked[own]]
        places = np.linspace(0, len(looked_at) - 1, min(per_source, len(looked_at))).round().astype(np.int64)
        chosen = sorted(looked_at[places].tolist(), key=lambda query: (not answered[query], labels[query], query))
        with_spark = noisy is not None and len(class_names) <= WIDEST_SPARKLINE
        pictures = [
            Picture(
                query,
                image_data_uri(queries.images[query]),
                class_names[labels[query]] if answered[query] else None,
                sparkline(noisy[query]) if with_spark and noisy is not None and answered[query] else None,
            )
            for query in chosen
        ]
        sheets.append(ContactSheet(kind, len(own), len(looked_at), int(answered[own].sum()), pictures))
    return sheets
