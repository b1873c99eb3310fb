"""Small students as `terrine.deployment` loads them, made in a moment and without a run."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from terrine.classifiers import LinearHead, MLPHead
from terrine.deployment.alone import student_alone
from terrine.deployment.manifest import MANIFEST, seal
from terrine.deployment.model import ALONE_BACKBONE, ALONE_HEAD, BACKBONE, HEAD, REFERENCE
from terrine.models.files import save_backbone
from terrine.models.registry import build_backbone

SIZE, CLASSES = 12, 4
KINDS = {"scattering": {"orientations": 4, "projection": 24}, "resnet10": {}}


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
    hidden: bool = False,
    statistics: str = "current",
    channels: int = 1,
    alone: bool = False,
) -> Path:
    """Write a student with random weights, and running statistics that differ from every batch's, to `folder`."""
    folder.mkdir(parents=True)
    backbone = build_backbone(kind, channels=channels, size=SIZE, seed=1, **KINDS[kind])
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
    head = (
        MLPHead(normal(8, width), normal(8), normal(CLASSES, 8), normal(CLASSES))
        if hidden
        else LinearHead(normal(CLASSES, width), normal(CLASSES))
    )
    save_file(head.to_arrays(), folder / HEAD)
    if alone:
        made = student_alone(backbone, head, [images(300, seed=5, channels=channels)], seed=0, domains=16)
        save_backbone(made[0], folder / ALONE_BACKBONE)
        save_file(made[1].to_arrays(), folder / ALONE_HEAD)
    save_file({"images": images(40, seed=4, channels=channels)}, folder / REFERENCE)
    description = {
        "kind": "linear",
        "statistics": statistics,
        "class_names": [f"class {number}" for number in range(CLASSES)],
        "size": SIZE,
        "channels": channels,
    }
    (folder / MANIFEST).write_text(json.dumps(seal(folder, description)))
    return folder
