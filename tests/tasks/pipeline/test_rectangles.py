"""Images that are not square, from the look at them to a student that is asked about files of any shape."""

import numpy as np
import pytest
from PIL import Image

from flows.stages import run_through
from tasks.config.params import validate
from tasks.pipeline.report import write_report
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, write_text
from terrine.data.image_files import read_images
from terrine.deployment.model import StudentModel
from terrine.errors import InputError

VALUES = {
    "data": {"name": "digits", "size": [24, 16]},
    "partition": {"teachers": 7},
    "queries": {"count": 200, "batch": 50, "sources": {"dead_leaves": 1, "stylegan": 1}},
    "backbone": {"kind": "scattering", "projection": 40},
    "aggregation": {"mechanism": "moments", "epsilon": 8},
    "student": {"kind": "sums"},
    "device": "cpu",
}


def test_a_run_of_images_that_are_not_square_ends_in_a_student_that_takes_such_images(tmp_path):
    run = Run(tmp_path, "tall", validate(VALUES))
    run_through(run, "dataset", "evaluate")
    assert read_json(run.folders.evaluation)["accuracy"] > 0.75
    assert read_json(run.folders.images / "manifest.json")["size"] == [24, 16]
    assert read_json(run.folders.student / "manifest.json")["size"] == [24, 16]
    write_text(tmp_path / "experiments" / "tall.yaml", "description: tall\n")
    write_report.fn(run)
    student = StudentModel.load(run.folders.student)
    picture = np.random.default_rng(0).integers(0, 256, (50, 30), dtype=np.uint8)
    Image.fromarray(picture).save(tmp_path / "one.png")
    images = read_images([tmp_path / "one.png"], **student.reading)
    assert images.shape == (1, 1, 24, 16)
    assert student.predict(images).shape == (1, 10)
    with pytest.raises(InputError, match=r"takes \[images, 1, 24, 16\]"):
        student.predict(np.zeros((1, 1, 16, 24), np.uint8))
