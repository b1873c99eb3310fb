"""The jobs: functions of what they need that return figures, most valuable first in `JOBS`."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import terrine as tr
from benchmarks.gpu import features as colour
from benchmarks.gpu import scratch
from benchmarks.gpu.contrast import Recipe, contrast
from benchmarks.gpu.images import colour_images
from tasks.config.presets import load_values
from terrine.aggregation.votes import count_votes
from terrine.models.architecture import build_backbone
from terrine.models.backbone import Backbone
from terrine.pretraining.augment import ViewSettings
from terrine.teachers.base import TeacherContext

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Place:
    """Folders, device and limits of a job.

    Attributes:
        data: Folder with `MNIST/raw` and `cifar10_jpeg.tar.xz`.
        out: Folder for files that are brought back.
        work: Folder for all others.
        device: Where it computes.
        small: Tiny sizes, to try a job on a CPU.
        deadline: `time.monotonic()` by which it should be done.
    """

    data: Path
    out: Path
    work: Path
    device: torch.device
    small: bool
    deadline: float

    def sized(self, full: int, small: int) -> int:
        """Return a number of images, steps or teachers."""
        return small if self.small else full


Figures = dict[str, Any]
Save = Callable[[str, Figures], None]
Job = Callable[["Place", Save], None]


def save_weights(backbone: Backbone, path: Path) -> None:
    """Write a backbone's weights in half precision: about half of the bytes, and the same answers but for few."""
    from safetensors.torch import save_file

    state = backbone.network.state_dict()
    halved = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    save_file({n: v.half() if v.is_floating_point() else v for n, v in halved.items()}, path)


def read_weights(backbone: Backbone, path: Path) -> None:
    """Read what `save_weights` wrote."""
    from safetensors.torch import load_file

    state = {name: value.float() if value.is_floating_point() else value for name, value in load_file(path).items()}
    backbone.network.load_state_dict(state)


COLOUR = Recipe(
    side=32,
    batch=768,
    learning_rate=1.5e-3,
    temperature=0.2,
    weight_decay=1e-5,
    hidden=1024,
    warmup=0.05,
    views=ViewSettings(crop_area=(0.15, 1.0)),
)
MNIST = Recipe(side=28)


def colour_backbone() -> Backbone:
    """The network for colour images of 32 pixels: ResNet10 whose stem keeps their resolution."""
    return build_backbone("resnet10", channels=3, size=32, seed=0, stem="small")


def cifar(place: Place) -> dict[str, np.ndarray]:
    """Return CIFAR-10, decoded once."""
    path = place.work / "cifar.npz"
    if not path.is_file():
        np.savez(path, **colour.cifar(place.data / "cifar10_jpeg.tar.xz"))
    with np.load(path) as arrays:
        return {name: arrays[name][:300] if place.small else arrays[name] for name in arrays}


def colour_network(
    place: Place, save: Save, *, recipe: str, seconds: float, name: str, count: int = 200_000, probe: bool = False
) -> None:
    """SimCLR of a ResNet10 on images of programs, then CIFAR-10 by features of all levels."""
    device = place.device
    mixture, layered = recipe.split(":")[0], float(recipe.split(":")[1])
    begun = time.monotonic()
    side = 48 if not place.small else 24
    images = colour_images(mixture, place.sized(count, 400), side, 0, device, layered=layered)
    if device.type == "cuda":
        torch.cuda.synchronize()
    drawn = round(time.monotonic() - begun, 1)
    save(f"{name}-images", {"images": len(images), "side": side, "seconds": drawn})
    backbone = colour_backbone()
    settings = COLOUR if not place.small else replace(COLOUR, batch=8, side=16)
    seconds = min(seconds, place.deadline - time.monotonic() - 25)
    how = {"steps": 3} if place.small else {"seconds": seconds}
    figures = contrast(backbone.network, backbone.feature_dim, images, settings, seed=0, **how)
    save_weights(backbone, (place.work if probe else place.out) / f"{name}.safetensors")
    save(f"{name}-pretraining", {**figures, "mixture": mixture, "layered": layered, "batch": settings.batch})
    del images
    data = cifar(place)
    held = len(data["train_images"]) // 5
    network = backbone.network.to(device)
    for parts in ((0, 0, 0, 1), (2, 2, 2, 2)) if probe else ((0, 0, 0, 1), (0, 0, 2, 2), (2, 2, 2, 2), (3, 3, 2, 2)):
        levels = colour.Levels(network, parts)
        rows = colour.features(levels, data["train_images"], device)
        accuracy = colour.ridge_accuracy(
            rows[held:], data["train_labels"][held:], rows[:held], data["train_labels"][:held]
        )
        save(f"{name}-ridge-{'-'.join(map(str, parts))}", {"features": rows.shape[1], "held_out_accuracy": accuracy})


def colour_heads(place: Place, save: Save, *, name: str, dimension: int = 1000) -> None:
    """Heads from sums with noise on the features of `colour_network`, on the test images."""
    device = place.device
    backbone = colour_backbone()
    read_weights(backbone, place.out / f"{name}.safetensors")
    network = colour.Levels(backbone.network.to(device))
    data = cifar(place)
    count = place.sized(6_000, 200)
    public = np.concatenate(
        [
            tr.draw(kind, count=count // 2, size=32, channels=3, seed=1, device=device).images
            for kind in ("dead_leaves", "stylegan")
        ]
    )
    public = public[np.random.default_rng(0).permutation(count)]
    found = colour.projection(network, public, place.sized(dimension, 50), device)

    def projected(images: np.ndarray) -> np.ndarray:
        rows = (colour.features(network, images, device) - found["mean"]) / found["deviation"]
        return (rows @ found["matrix"]).cpu().numpy()

    arrays = {
        "public": projected(public),
        "train": projected(data["train_images"]),
        "test": projected(data["test_images"]),
        "train_labels": data["train_labels"],
        "test_labels": data["test_labels"],
    }
    seeds = (0,) if place.small else (0, 1, 2, 3, 4)
    for seed in seeds:
        for epsilon in (1.0, 2.0, 6.0):
            (figures,) = colour.private_accuracies(arrays, ("gradients",), (epsilon,), (seed,))
            save(f"{name}-gradients-{epsilon:g}-{seed}", figures)


def mnist(place: Place, partition_seed: int) -> tuple[tr.Dataset, Any]:
    """MNIST in its official split, dealt to the teachers of `diet-pate-mnist`."""
    if place.small:
        data = tr.load_dataset("digits", size=28)
        return data, tr.partition(data, teachers=4, seed=partition_seed)
    data = tr.load_dataset("mnist", root=place.data, download=False, size=28, channels=1)
    return data, tr.partition(data, teachers=200, seed=partition_seed)


def preset(name: str) -> dict[str, Any]:
    """Return the settings of a preset."""
    return load_values(REPOSITORY, name, {}, {})


def diet_backbone() -> Backbone:
    """The ResNet18 of `diet-pate-mnist`."""
    return build_backbone("resnet18", channels=1, size=28, seed=0, stem="standard")


def diet_network(place: Place, save: Save, *, steps: int | None = None, count: int | None = None) -> None:
    """SimCLR as in `diet-pate-mnist`: 75 epochs over 105,000 StyleGAN images."""
    settings = preset("diet-pate-mnist")["pretraining"]
    probe = steps is not None
    count = place.sized(count or settings["images"]["count"], 300)
    images = torch.from_numpy(tr.draw("stylegan", count=count, size=28, seed=0, device=place.device).images)
    backbone = diet_backbone()
    recipe = MNIST if not place.small else replace(MNIST, batch=8)
    steps = place.sized(steps or settings["epochs"] * (count // settings["batch"]), 3)
    figures = contrast(backbone.network, 512, images.to(place.device), recipe, seed=0, steps=steps)
    whole = place.work / "diet-pate-mnist.safetensors"
    save_weights(backbone, whole)
    content = whole.read_bytes()  # larger than what may be brought back in one file
    half = len(content) // 2
    for number, part in enumerate(() if probe else (content[:half], content[half:])):
        (place.out / f"diet-pate-mnist.part{number}").write_bytes(part)
    save("diet-pate-mnist-pretraining", {**figures, "images": count})


def diet_seeds(place: Place, save: Save, *, seeds: tuple[int, ...]) -> None:
    """Teachers, Confident answers and student of `diet-pate-mnist` from the weights of `diet_network`."""
    settings = preset("diet-pate-mnist")
    backbone = diet_backbone()
    read_weights(backbone, place.work / "diet-pate-mnist.safetensors")
    queries = tr.draw("stylegan", count=place.sized(12_800, 256), batch=256, size=28, seed=1, device=place.device)
    for seed in seeds:
        data, parts = mnist(place, seed)
        chosen = {key: value for key, value in settings["teachers"].items() if key != "kind"}
        teachers = tr.LinearTeachers(**chosen).fit(data, parts, copy.deepcopy(backbone), seed=seed, device=place.device)
        votes = teachers.vote(queries)
        release = released(place, votes, settings["aggregation"], f"diet-{seed}")
        student = tr.FinetuneStudent(**{k: v for k, v in settings["student"].items() if k != "kind"}).fit(
            queries, release, copy.deepcopy(backbone), seed=seed, device=place.device
        )
        save(
            f"diet-pate-mnist-{seed}",
            {**about(release, votes), "accuracy": round(100 * student.score(data.test), 2), "seed": seed},
        )


def released(place: Place, votes: tr.Votes, settings: dict[str, Any], name: str) -> tr.Release:
    """Release Confident answers within the preset's budget."""
    threshold = -999 if place.small else settings["threshold"]
    mechanism = tr.ConfidentGNMax(threshold=threshold, sigma1=settings["sigma1"], sigma2=settings["sigma2"])
    folder = place.work / "ledgers" / f"{name}-{time.time_ns()}"
    return tr.Ledger.open(folder, budget=settings["epsilon"], delta=settings["delta"]).release(mechanism, votes)


def about(release: tr.Release, votes: tr.Votes) -> Figures:
    """Return the exact ε of a release, its numbers of questions and answers, and the teachers' agreement in %."""
    counts = count_votes(votes.values, votes.classes)
    statement = release.privacy
    agreement = counts.max(1) / counts.sum(1)
    return {
        "epsilon": round(float(statement.epsilon), 4),
        "queried": int(statement.queried),
        "answered": int(statement.answered),
        "agreement": round(100 * float(agreement.mean()), 2),
    }


def pate_without_public(
    place: Place, save: Save, *, seeds: tuple[int, ...], architecture: str = "resnet10", limit: int = 0
) -> None:
    """PATE whose teachers and student begin from scratch, asked about images of programs."""
    settings = preset("diet-pate-mnist")
    device = place.device
    count = place.sized(10_240, 256)
    queries = {
        kind: tr.draw(kind, count=count, batch=256, size=28, seed=1, device=device) for kind in ("stylegan", "gaussian")
    }
    for seed in seeds:
        data, parts = mnist(place, seed)
        assignment, train_images, train_labels = parts.assignment, data.train_images, data.train_labels
        if limit:  # a trial of the first teachers
            first = assignment < limit
            train_images, train_labels, assignment = train_images[first], train_labels[first], assignment[first]
        chosen = tr.ScratchTeachers(
            architecture=architecture, statistics="original", initialisation="own", epochs=place.sized(50, 1), batch=256
        )
        kind = chosen.build(TeacherContext(10, 1, 28, lambda: None, seed))  # type: ignore[arg-type, return-value]
        begun = time.monotonic()
        states = list(scratch.train_all(kind, train_images, train_labels, assignment, seed=seed, device=device))
        seconds = round(time.monotonic() - begun, 1)
        test_images, test_labels = data.test
        if place.small:
            test_images, test_labels = test_images[:250], test_labels[:250]
        for statistics in ("original", "current"):
            own = scratch.votes(kind, states, test_images, 250, statistics, device)
            right = 100 * float((own == test_labels[:, None]).mean())
            for source, queried in queries.items():
                values = scratch.votes(kind, states, queried.images, 256, statistics, device)
                votes = tr.Votes(values, 10, queried.digest, parts.assignment, public=True)
                release = released(place, votes, settings["aggregation"], f"pate-{seed}")
                figures = about(release, votes) | {"teachers": round(right, 2), "training_seconds": seconds}
                rows = np.flatnonzero(release.answered)
                accuracy = None
                if len(rows) >= 2:
                    trainer = scratch.Trainer(kind, device)
                    images = torch.from_numpy(np.ascontiguousarray(queried.images[rows])).to(device)
                    labels = torch.from_numpy(release.labels[rows]).to(device)
                    state = trainer.train(kind.classifier(seed), images, labels, torch.Generator().manual_seed(seed))
                    answers = scratch.votes(kind, [state], test_images, 250, statistics, device)[:, 0]
                    accuracy = round(100 * float((answers == test_labels).mean()), 2)
                figures |= {"accuracy": accuracy, "source": source, "statistics": statistics, "seed": seed}
                save(f"pate-{architecture}-{source}-{statistics}-{seed}", figures)


def transcribed(place: Place, save: Save, *, norm: str, seed: int = 0) -> None:
    """`dpsd-mnist` as published, with the norm of equation 3 taken over a batch or over each sample."""
    from flows.stages import run_through
    from tasks.config.params import validate
    from tasks.runtime.run import Run
    from tasks.runtime.store import read_json

    changes: dict[str, Any] = {
        "seed": seed,
        "device": str(place.device),
        "data": {"root": str(place.data), "download": False},
        "transcription": {"noise": "replay", "annotation": {"norm": norm}},
    }
    if place.small:
        changes["transcription"] |= {"iterations": 2, "batch": 4, "teacher": {"epochs": 1, "architecture": "small_cnn"}}
    run = Run(place.work / f"dpsd-{norm}-{seed}", "run", validate(load_values(REPOSITORY, "dpsd-mnist", changes, {})))
    run_through(run, "dataset", "evaluate")
    evaluation = read_json(run.folders.evaluation)
    accuracy = evaluation.get("in_batches", evaluation)["accuracy"]
    save(f"dpsd-mnist-{norm}-{seed}", {"accuracy": round(100 * accuracy, 2)})


RECIPE = os.environ.get("TERRINE_GPU_RECIPE", "programs:0.5")
"""Mixture of programs, and the share of images in two layers."""
SECONDS = float(os.environ.get("TERRINE_GPU_SECONDS", "200"))
"""Time for the training of the network for colour images."""


def _probe(recipe: str) -> Job:
    name = f"probe-{recipe.replace(':', '-')}"
    return lambda place, save: colour_network(
        place, save, recipe=recipe, seconds=12, name=name, count=40_000, probe=True
    )


def _pate(seed: int, **others: Any) -> Job:
    return lambda place, save: pate_without_public(place, save, seeds=(seed,), **others)


JOBS: dict[str, Job] = {
    "colour": lambda place, save: colour_network(place, save, recipe=RECIPE, seconds=SECONDS, name="colour"),
    "colour-heads": lambda place, save: colour_heads(place, save, name="colour"),
    "diet": diet_network,
    "diet-seeds": lambda place, save: diet_seeds(place, save, seeds=(0, 1, 2, 3, 4)),
    "pate-0": _pate(0),
    "dpsd-batch": lambda place, save: transcribed(place, save, norm="batch"),
    "dpsd-sample": lambda place, save: transcribed(place, save, norm="sample"),
    "pate-1": _pate(1),
    "pate-2": _pate(2),
    "pate-3": _pate(3),
    "pate-4": _pate(4),
}
"""Jobs by name, the most valuable first."""

PROBES: dict[str, Job] = {
    **{f"probe-{recipe}": _probe(recipe) for recipe in ("programs:0.5", "programs:0", "stylegan:0")},
    "probe-diet": lambda place, save: diet_network(place, save, steps=400, count=10_000),
    "probe-diet-seed": lambda place, save: diet_seeds(place, save, seeds=(0,)),
    "probe-pate": _pate(0, limit=20),
}
"""Short trials of each job, to time it."""
