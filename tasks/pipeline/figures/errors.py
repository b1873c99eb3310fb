"""Test images that the student gets wrong, for the private report."""

from __future__ import annotations

import numpy as np

from tasks.reports.charts import png_data_uri
from tasks.runtime.run import Run
from tasks.runtime.store import write_json
from terrine.data.dataset import Dataset

NOTICE = "PRIVATE: test records, covered by no guarantee. Do not publish."
FILE = "errors.json"
IMAGES = 12
LONGEST = 112
"""Largest width and height of a misclassified image in the report, in pixels."""


def write_errors(run: Run, dataset: Dataset, predicted: np.ndarray) -> None:
    """Write some misclassified test images to data/private.

    Args:
        run: The run.
        dataset: Its data.
        predicted: The student's probabilities on the test split, [images, classes].
    """
    if run.params.transcription is not None:  # a transcription's report does not show them
        return
    found = []
    if run.params.data.of_images and not dataset.several:
        decided, names = dataset.decided(predicted), dataset.class_names
        wrong = np.flatnonzero(decided != dataset.test_labels)
        for number in wrong[np.linspace(0, len(wrong) - 1, min(IMAGES, len(wrong))).round().astype(np.int64)]:
            image = dataset.test_images[number]
            uri = png_data_uri(image[0] if len(image) == 1 else image.transpose(1, 2, 0), LONGEST)
            true, predicted_as = names[dataset.test_labels[number]], names[decided[number]]
            found.append({"image": uri, "true": true, "predicted": predicted_as})
    write_json(run.folders.private / FILE, {"notice": NOTICE, "wrong": found})
