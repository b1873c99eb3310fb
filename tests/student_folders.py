"""Small students as `terrine.deployment` loads them, made in a moment and without a run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

from tasks.reports.statement_page import render_technical_page
from tasks.runtime.store import write_json
from terrine.data.encoding import Column, Encoding
from terrine.deployment.manifest import MANIFEST, check_seal, seal
from terrine.deployment.model import BACKBONE, HEAD, MOMENTS, REFERENCE
from terrine.deployment.rows import ENCODING
from terrine.heads import LinearHead
from terrine.models.architecture import build_backbone
from terrine.models.backbone_files import save_backbone
from terrine.privacy.accounting.events import RepeatedEvent, vote_answer
from terrine.privacy.facts import Facts
from terrine.privacy.statement import PrivacyStatement
from terrine.students.answers import label_answers
from terrine.students.forest import fit
from tests.statement_schema import check_schema

SIZE, CLASSES = 12, 4
KINDS = {
    "scattering": {"orientations": 4, "projection": 24},
    "resnet10": {},
    "timm": {"architecture": "test_efficientnet", "enlarge": 32, "levels": True, "mirrored": True},
}


def images(count: int, seed: int = 0, channels: int = 1) -> np.ndarray:
    """Return uint8 images [count, channels, 12, 12] of different brightness and contrast."""
    generator = np.random.default_rng(seed)
    contrast, brightness = generator.uniform(20, 120, (2, count, 1, 1, 1))
    return np.clip(generator.normal(size=(count, channels, SIZE, SIZE)) * contrast + brightness, 0, 255).astype(
        np.uint8
    )


def make_student(
    folder: Path,
    kind: str = "scattering",
    *,
    statistics: str = "current",
    channels: int = 1,
    moments: bool = False,
    **more: object,
) -> Path:
    """Write a student with random weights, and running statistics that differ from every batch's, to `folder`.

    more: what else its manifest says.
    """
    folder.mkdir(parents=True)
    backbone = build_backbone(kind, channels=channels, size=SIZE, seed=1, **KINDS.get(kind, {}))
    generator = torch.Generator().manual_seed(2)
    for layer in backbone.modules():
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
            layer.running_mean.uniform_(-0.5, 0.5, generator=generator)
            layer.running_var.uniform_(0.5, 2, generator=generator)
    save_backbone(backbone, folder / BACKBONE)
    numbers = np.random.default_rng(3)

    def normal(*shape: int) -> np.ndarray:
        return numbers.normal(size=shape).astype(np.float32) / 3

    width = backbone.feature_dim
    save_file(LinearHead(normal(CLASSES, width), normal(CLASSES)).to_arrays(), folder / HEAD)
    if moments:
        logs = np.random.default_rng(6).normal(size=(2, backbone.network.standardise.num_features))
        save_file({"mean": np.float32(logs[0] - 2), "variance": np.float32(np.exp(logs[1]))}, folder / MOMENTS)
    save_file({"images": images(40, seed=4, channels=channels)}, folder / REFERENCE)
    description = {
        "kind": "linear",
        "release": "01",
        "statistics": statistics,
        "class_names": [f"class {number}" for number in range(CLASSES)],
        "size": SIZE,
        "channels": channels,
        "reference": "40 images drawn by the image programs noise",
        **more,
    }
    (folder / MANIFEST).write_text(json.dumps(seal(folder, description)))
    return folder


TABLE = Encoding(
    (
        Column("age", (20.0, 40.0, 60.0)),
        Column("work", values=("", "Private", "State-gov")),
        Column("gain", (1.0, 3.0, 9.0)),
    )
)
"""The columns of `make_table_student`: nine features."""


def make_table_student(folder: Path, *, forest: bool = False) -> Path:
    """Write a student of a table with the columns `TABLE` and two classes to `folder`."""
    folder.mkdir(parents=True)
    save_backbone(build_backbone("columns", channels=9, size=1, seed=0), folder / BACKBONE)
    numbers = np.random.default_rng(3)
    rows = numbers.normal(size=(200, 9)).astype(np.float32)
    head = LinearHead(numbers.normal(size=(2, 9)).astype(np.float32), np.zeros(2, np.float32))
    if forest:
        answers = label_answers((rows[:, 0] + rows[:, 1] > 0).astype(np.int64), 2)
        head = fit(rows, answers, trees=5, least=5, seed=1)
    save_file(head.to_arrays(), folder / HEAD)
    roles = {"target": "income", "id": "key", "roles": ["income", "key"]}
    (folder / ENCODING).write_text(json.dumps({**roles, "columns": TABLE.describe()}))
    description = {
        "kind": "linear",
        "release": "01",
        "statistics": "original",
        "class_names": ["<=50K", ">50K"],
        "size": 28,
    }
    (folder / MANIFEST).write_text(json.dumps(seal(folder, {**description, "channels": 1})))
    return folder


def make_statement(folder: Path, **changes: Any) -> dict:
    """Write the privacy statement of a student in `folder` where it belongs, beside it; return what it says."""
    names = json.loads((folder / "manifest.json").read_text())["class_names"]
    values: dict[str, Any] = {
        "run": "clinic", "release_id": "01", "dataset": "23", "unit": "record", "trust_model": "central",
        "event": RepeatedEvent(vote_answer(40.0), 100), "delta": 1e-5, "delta_slack": 0.0, "epsilon_budget": 3.0,
        "epsilon_dataset": 3.0, "noise": "secure", "mechanism": {"mechanism": "gnmax", "sigma": 40.0}, "teachers": 50,
        "queries": 100, "queried": 100, "answered": 100, "answered_per_class": (100, 0, 0, 0), "partition_digest": "45",
        "partition_disjoint": True, "public_inputs": (), "code_version": "1", "facts": Facts("image"),
        "task": {"kind": "classes", "names": names, "edges": [], "target": None, "found": False},
    }  # fmt: skip
    content = PrivacyStatement(**(values | changes)).to_dict()
    check_schema(content)
    (folder.parent / "privacy.json").write_text(json.dumps(content))
    return content


def write_release(release: Path) -> None:
    """Write an unsigned release: student, privacy.json and technical page."""
    content = make_statement(make_student(release / "student"))
    write_json(release / "privacy.json", content)
    classes = check_seal(release / "student")["class_names"]
    (release / "statement.html").write_text(render_technical_page(content, classes))
