"""Pictures for pages: which queries are shown, under which label, and what colours mean."""

import base64
import io

import numpy as np
from PIL import Image

from tasks.reports.pictures import contact_sheets, image_data_uri
from terrine.data.label_mix import row_shares
from terrine.queries import Queries


def decoded(uri):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,")))))


def query_set():
    """Three batches of two sources; every image is filled with its own number."""
    images = np.repeat(np.arange(30, dtype=np.uint8), 64).reshape(30, 1, 8, 8)
    return Queries(images, [np.arange(10), np.arange(10, 20), np.arange(20, 30)], ["a", "b", "a"])


def test_a_picture_stands_beside_its_own_label():
    labels = np.arange(30) % 4
    answered = np.arange(30) % 5 != 0
    sheets = contact_sheets(query_set(), answered, np.where(answered, labels, -1), np.arange(30) < 30, list("wxyz"))
    assert [sheet.kind for sheet in sheets] == ["a", "b"]
    for sheet in sheets:
        for picture in sheet.pictures:
            assert (decoded(picture.uri) == picture.query).all()
            assert picture.label == ("wxyz"[labels[picture.query]] if answered[picture.query] else None)


def test_a_sheet_counts_its_own_source_and_shows_only_what_was_asked():
    answered = np.arange(30) < 24
    first, second = contact_sheets(query_set(), answered, np.where(answered, 0, -1), np.arange(30) < 24, ["only"])
    assert (first.queries, first.asked, first.answered) == (20, 14, 14)
    assert (second.queries, second.asked, second.answered) == (10, 10, 10)
    assert {picture.query for picture in first.pictures} == {*range(10), *range(20, 24)}


def test_noisy_histograms_are_drawn_where_they_were_released():
    answered = np.arange(30) < 20
    noisy = np.random.default_rng(0).normal(size=(30, 3))
    noisy[20:] = np.nan
    for sheet in contact_sheets(
        query_set(), answered, np.where(answered, 1, -1), np.arange(30) < 30, list("abc"), noisy
    ):
        for picture in sheet.pictures:
            assert (picture.spark is not None) == answered[picture.query]


def test_a_colour_image_keeps_its_channels_in_order():
    image = np.zeros((3, 9, 9), dtype=np.uint8)
    image[0], image[1], image[2, 0] = 200, 100, 50
    assert np.array_equal(decoded(image_data_uri(image)), image.transpose(1, 2, 0))


def test_row_shares_are_those_of_a_plain_loop_and_an_empty_row_stays_empty():
    confusion = np.random.default_rng(1).integers(0, 9, (6, 6))
    confusion[2] = 0
    shares = row_shares(confusion)
    for row in range(6):
        total = sum(confusion[row].tolist())
        for column in range(6):
            assert shares[row, column] == (confusion[row, column] / total if total else 0)
