"""Backbones for MNIST that saw only synthetic images: scattering, SimCLR-ResNet18, both side by side; and untrained.

    python benchmarks/backbones.py [--root FOLDER] [--work FOLDER] [--seeds 0 1 2] [--images 32768] [--epochs 10]
                                   [--batch 256] [--queries 10000] [--teachers 200] [--records N] [--device auto]

The preset terrine-mnist (200 ridge teachers, 10,000 queries of dead leaves and StyleGAN, exact ε = 6 with replayed
noise, linear student) on each backbone. Columns: the linear probe on synthetic labels (which program drew an image:
public), the linear probe on MNIST itself (ridge on all training labels, test accuracy: an evaluation, which a private
dataset would not allow), the teachers' agreement and the student. The ResNet18 is pretrained once, on --images
synthetic images of the same two programs for --epochs epochs, with checkpoints: a killed run goes on. Seeds draw other
queries, partitions, noise and untrained weights. Finished rows are kept in --work.
"""

from collections.abc import Callable

import numpy as np
import torch
from cells import KEPT, Cells, common_options, datasets, heading, row, spread
from transfer import SETTINGS, SIZE, SOURCES, near_equal, pretrained, query_images, teach, transfer

from terrine.data.dataset import Dataset
from terrine.determinism.randomness import numpy_generator
from terrine.models.architecture import build_backbone
from terrine.models.backbone import Backbone, features_in_batches
from terrine.models.statistics import fit_reference
from terrine.synthetic.program import programs

COLUMNS = ("synthetic", "mnist", "agreement", "accuracy")
PROBED = 2_000
_PROBE_PENALTY = 1e-3


def side_by_side_with(resnet: Backbone, seed: int, stem: str) -> Backbone:
    """Return scattering and this ResNet18, concatenated."""
    parts = [{"kind": "scattering", "projection": 200}, {"kind": "resnet18", "stem": stem}]
    both = build_backbone("concatenated", channels=1, size=SIZE, seed=seed, parts=parts)
    both.network.networks[1].load_state_dict(resnet.network.state_dict())
    images = np.concatenate([query_images(kind, 500, 1, seed=0) for kind in SOURCES])
    fit_reference(both, images, near_equal(np.arange(len(images))))
    return both


def synthetic_probe(backbone: Backbone, seed: int) -> float:
    """Return how well features tell the image programs apart."""
    kinds = [kind for kind in programs() if kind != "mixup"]
    images = np.concatenate([query_images(kind, PROBED // len(kinds), 1, seed=seed + 1_000) for kind in kinds])
    labels = np.repeat(np.arange(len(kinds)), PROBED // len(kinds))
    order = numpy_generator(seed, "probe").permutation(len(images))
    features = features_in_batches(backbone, images, np.array_split(order, max(1, round(len(order) / 256))), "current")
    train, test = np.array_split(order, 2)
    mean, deviation = features[train].mean(0, dtype=np.float64), features[train].std(0, dtype=np.float64)
    features = (features - mean) / np.where(deviation > 0, deviation, 1.0)
    targets = np.eye(len(kinds))[labels[train]]
    gram = features[train].T @ features[train] + 1e-2 * len(train) * np.eye(features.shape[1])
    weights = np.linalg.solve(gram, features[train].T @ (targets - targets.mean(0)))
    return float(np.mean((features[test] @ weights + targets.mean(0)).argmax(1) == labels[test]))


def mnist_probe(backbone: Backbone, data: Dataset, seed: int) -> float:
    """Return the test accuracy of a ridge classifier on all training labels, batches shuffled."""
    features = []
    for name, images in (("train", data.train_images), ("test", data.test_images)):
        order = numpy_generator(seed, f"probe {name}").permutation(len(images))
        features.append(features_in_batches(backbone, images, near_equal(order), "current"))
    mean, deviation = features[0].mean(axis=0), features[0].std(axis=0)
    train, test = ((rows - mean) / np.where(deviation > 1e-6, deviation, 1.0) for rows in features)
    targets = np.eye(data.classes)[data.train_labels]
    gram = train.T.astype(np.float64) @ train + _PROBE_PENALTY * len(train) * np.eye(train.shape[1])
    weights = np.linalg.solve(gram, train.T @ (targets - targets.mean(axis=0)))
    return float(((test @ weights).argmax(axis=1) == data.test_labels).mean())


def main() -> None:
    """Make the table."""
    parser = common_options(__doc__, root=datasets(), work=KEPT, seeds=[0, 1, 2])
    parser.add_argument("--images", type=int, default=32_768)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--stem", choices=["standard", "small"], default="standard")
    parser.add_argument("--queries", type=int, default=SETTINGS["mnist"].queries)
    parser.add_argument("--teachers", type=int, default=SETTINGS["mnist"].teachers)
    parser.add_argument("--records", type=int, help="take so many training records; null: all")
    parser.add_argument("--device", default="auto", help="where the ResNet18 is pretrained")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    data = SETTINGS["mnist"].load(arguments.root)
    if data is None:
        raise SystemExit(f"MNIST is not under {arguments.root}: give its folder as --root.")
    if arguments.records is not None:
        chosen = numpy_generator(0, "records").permutation(data.records)[: arguments.records]
        data = Dataset(
            data.name, data.train_images[chosen], data.train_labels[chosen], None, data.test_images, data.test_labels,
            data.class_names,
        )  # fmt: skip
    resnet = pretrained(
        "resnet18",
        1,
        arguments.work,
        images=arguments.images,
        epochs=arguments.epochs,
        batch=arguments.batch,
        device=arguments.device,
        stem=arguments.stem,
    )

    def untrained(seed: int) -> Backbone:
        return build_backbone("resnet18", channels=1, size=SIZE, seed=seed, stem=arguments.stem)

    cases: dict[str, Callable[[int], Backbone]] = {
        "scattering, 200 projected": lambda seed: build_backbone(
            "scattering", channels=1, size=SIZE, seed=seed, projection=200
        ),
        "ResNet18, untrained": untrained,
        "ResNet18, SimCLR": lambda seed: resnet,
        "scattering and untrained ResNet18": lambda seed: side_by_side_with(untrained(seed), seed, arguments.stem),
        "scattering and SimCLR-ResNet18": lambda seed: side_by_side_with(resnet, seed, arguments.stem),
    }
    cells = Cells(arguments.work / "backbones.jsonl")
    name = (
        f"{arguments.stem} stem, {arguments.images} images, {arguments.epochs} epochs, batch {arguments.batch}, "
        f"{data.records} records, {arguments.teachers} teachers, {arguments.queries} queries"
    )
    print(f"\n{name}, {len(arguments.seeds)} seeds")
    heading("backbone", "features", "probe, synthetic %", "probe, MNIST %", "agreement %", "student % at ε = 6")
    for case, build in cases.items():

        def compute(seed: int, build: Callable[[int], Backbone] = build) -> dict[str, float]:
            backbone = build(seed)
            images = query_images(",".join(SOURCES), arguments.queries, 1, seed=seed)
            taught = teach(data, backbone, arguments.teachers, seed=seed)
            return {
                "features": backbone.feature_dim,
                "synthetic": synthetic_probe(backbone, seed),
                "mnist": mnist_probe(backbone, data, seed),
                **transfer(taught, backbone, images, len(SOURCES), seed=seed),
            }

        with torch.no_grad():
            found = [
                cells.get(f"{name}, {case}, seed {seed}", lambda seed=seed: compute(seed)) for seed in arguments.seeds
            ]
        texts = [spread([each[column] for each in found], 2) for column in COLUMNS]
        row(case, f"{found[0]['features']:,.0f}", *texts)


if __name__ == "__main__":
    main()
