"""Export of the images that a student learned from, with labels, as a dataset.

images/000000.png ...  images drawn by programs; real images declared public are left out
labels.csv             file, label, and for each class a noisy count of votes or the student's probability
README.md              data card
croissant.json         metadata for search engines and data loaders (MLCommons Croissant 1.0)
privacy.json ...       statement, pages and signatures of the release

Formal guarantee: labels are the released answers, or the released student's predictions for public images. Both are
post-processing of the release, so its ε covers the dataset. No private file is read.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tasks.artefacts.images import POOL, read_queries
from tasks.artefacts.released import sums_over_records
from tasks.reports.pages import render
from tasks.runtime.run import Run
from tasks.runtime.store import atomic_folder, read_json, read_table, write_json, write_text
from tasks.serving.pages import FIGURES, SIGNATURES, guarantee, pages_in
from terrine.deployment.model import StudentModel
from terrine.errors import ArtefactError, InputError, SettingError
from terrine.extras import from_extra
from terrine.files import file_digest

Labels = Literal["answers", "student"]
CARD, METADATA, LABELS = "README.md", "croissant.json", "labels.csv"
CROISSANT = Path(__file__).with_name("kit") / "croissant.json"
"""The parts of the metadata that are the same for all datasets."""
_PART = 512


def export_dataset(run: Run, target: Path, labels: Labels | None = None) -> tuple[int, Labels]:
    """Write the dataset of a run.

    Args:
        run: The run, with a private release and a student.
        target: Folder to write. An earlier export of a dataset is replaced.
        labels: `answers` are the noisy answers; `student` the student's predictions. Default: answers if released.

    Returns:
        The number of images, and the kind of labels.

    Raises:
        SettingError: The release has no answers, or its queries are not images.
        ArtefactError: The release is NOT PRIVATE, or a file is missing.
        InputError: `target` exists and is not an export of a dataset.
    """
    with from_extra("pipeline", "Image files"):
        from PIL import Image
    if target.exists() and not (target / METADATA).is_file():
        raise InputError(f"{target} exists and is no earlier export of a dataset. Give a new folder, or remove it.")
    told = guarantee(run.folders.student)
    if told is None or not told["private"]:
        raise ArtefactError(f"Run {run.name} has no release with a guarantee, so its images and labels stay here.")
    answered = not sums_over_records(run) and run.params.aggregation.findings == 1
    if labels == "answers" and not answered:
        raise SettingError(
            f"Run {run.name} released {'sums' if sums_over_records(run) else 'answers about findings'}, not one label "
            "per image. Use --labels student."
        )
    if not run.params.data.of_images or run.params.data.channels not in (1, 3):
        raise SettingError("Only queries that are images with 1 or 3 channels can be exported as PNG files.")
    queries = read_queries(run.folders)
    drawn = [batch for batch, source in zip(queries.batches, queries.sources, strict=True) if source != POOL]
    if not drawn:
        raise SettingError("All queries are real images declared public. Only drawn images are exported.")
    kind: Labels = labels or ("answers" if answered else "student")
    numbers = np.sort(np.concatenate(drawn))
    with atomic_folder(target) as folder:
        table = _labels(run, kind, numbers)
        (folder / "images").mkdir()
        for number, name in zip(numbers[np.isin(numbers, table.index)], table["file"], strict=True):
            image = np.asarray(queries.images[np.array([number])])[0]
            Image.fromarray(image[0] if len(image) == 1 else np.moveaxis(image, 0, -1)).save(folder / name)
        table.to_csv(folder / LABELS, index=False)
        release = run.folders.release
        for name in (FIGURES, *SIGNATURES, *pages_in(release)):
            if (release / name).is_file():
                shutil.copyfile(release / name, folder / name)
        counts = table["label"].value_counts().to_dict()
        described = {"run": run.name, "kind": kind, "counts": counts, "images": len(table), "summary": told["summary"]}
        write_text(folder / CARD, render("dataset_card.md", described))
        write_json(folder / METADATA, _croissant(run, folder, described, list(table.columns[2:])))
    return len(table), kind


def _labels(run: Run, kind: Labels, numbers: np.ndarray) -> Any:
    """Return file, label and one number per class for each labelled image, as a table indexed by query."""
    import pandas as pd

    student = run.folders.student
    model = StudentModel.load(student)
    names = model.class_names
    if kind == "student":
        images = read_queries(run.folders).images
        parts = [numbers[start : start + _PART] for start in range(0, len(numbers), _PART)]
        values = np.concatenate([model.predict(np.asarray(images[part])) for part in parts])
        table = pd.DataFrame({f"probability of {name}": values[:, place] for place, name in enumerate(names)})
        table.insert(0, "label", [model.label(row) for row in values])
        table.index = pd.Index(numbers)
    else:
        answers = read_table(run.folders.answers / "answers.parquet").set_index("query")
        answers = answers[answers["answered"]].loc[lambda rows: rows.index.isin(numbers)]
        answers = answers[~answers.index.duplicated()]
        table = pd.DataFrame({"label": [names[label] for label in answers["label"]]}, index=answers.index)
        for place, name in enumerate(names):
            if f"count_{place}" in answers:
                table[f"noisy votes for {name}"] = answers[f"count_{place}"]
    table = table.sort_index()
    table.insert(0, "file", [f"images/{number:06d}.png" for number in table.index])
    return table


def _croissant(run: Run, folder: Path, described: dict[str, Any], columns: list[str]) -> dict[str, Any]:
    """Return the metadata of the dataset."""
    statement = read_json(folder / FIGURES)

    def column(place: int, name: str, kind: str) -> dict[str, Any]:
        return {
            "@type": "cr:Field",
            "@id": f"examples/{place}",  # without spaces
            "name": name,
            "dataType": kind,
            "source": {"fileObject": {"@id": LABELS}, "extract": {"column": name}},
        }

    found: dict[str, Any] = json.loads(CROISSANT.read_text(encoding="utf-8"))
    found |= {
        "name": f"{run.name}-dataset",
        "description": f"Drawn images with labels. {described['summary']}",
        "creator": {"@type": "sc:Organization", "name": (statement["facts"]["about"] or {}).get("controller") or "-"},
        "rai:personalSensitiveInformation": described["summary"],
    }
    found["distribution"][0]["sha256"] = file_digest(folder / LABELS)
    found["recordSet"][0]["field"] = [
        column(0, "file", "sc:Text"),
        column(1, "label", "sc:Text"),
        *(column(place, name, "sc:Float") for place, name in enumerate(columns, 2)),
    ]
    return found
