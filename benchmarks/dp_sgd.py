"""DP-SGD with all records in one place, by Opacus: the rival that needs no teachers and no synthetic images.

    pip install opacus
    python -m benchmarks.dp_sgd --data mnist --root SOURCE --model scatternet --epsilon 1 2 3 --seeds 0 1 2
    python -m benchmarks.dp_sgd --model cnn --epsilon 2.27 --seeds 0 [--compare]

With `--compare`, the row is written into docs/results/comparison.md, in the column of the nearest ε.

Models, by their papers:

- `scatternet`: a linear head on all scattering coefficients, normalised by groups of channels within an image (Tramer
  & Boneh 2021, Table 4 and appendix: 98.7 ± 0.3 % on MNIST at ε = 3).
- `cnn`: two convolutions and two layers with tempered sigmoids, here tanh (Papernot et al. 2021, Table 1), the network
  of Opacus's MNIST example; batches of 1,024, for 25 epochs.
- `terrine`: a linear head on the vectors that `aggregation.mechanism: gradients` adds up.

ε is that of Opacus's own accountant: one record added or removed, Poisson sampling. The tables also give the ε of the
same run for exchanging one record, as in this project. With probability q a round sees the record or its replacement,
so its dominating pair is (1 − q) N(0, σ²) + q N(±1, σ²) (Zhu, Dong & Wang 2022). dp-accounting composes it from the
masses of a fine grid. Rates, epochs and batch sizes are those of the papers, or were chosen on MNIST.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import terrine
from benchmarks.cells import KEPT, Cells, common_options, datasets, heading, row, spread
from benchmarks.comparison import PUBLISHED, comparison_columns, comparison_rows, store
from benchmarks.dp_sgd_head import Recipe, exchanged
from terrine.aggregation.records import Whitening
from terrine.data.source import load_dataset
from terrine.models.backbone import Backbone, as_float, features_in_batches, features_one_by_one
from terrine.models.wavelets import ScatteringNetwork

DELTA, QUERIES, FEATURES = 1e-5, 6_000, 200


RECIPES = {
    "scatternet": Recipe(batch=4096, epochs=25, rate=8.0, clip=0.1),
    "cnn": Recipe(batch=1024, epochs=25, rate=1.0, clip=0.1),
    "terrine": Recipe(),
}
NAMES = {
    "scatternet": "linear on all scattering coefficients",
    "cnn": "convolutional network",
    "terrine": "linear on the features of `gradients`",
}


class GroupNorm(nn.GroupNorm):
    """Coefficients [B, D] of `channels` maps, normalised within the image by groups of maps: no record sees another."""

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__(groups, channels, affine=False)

    def forward(self, maps: Tensor) -> Tensor:
        return super().forward(maps).flatten(1)


def scatternet(images: np.ndarray) -> Tensor:
    """Return the normalised coefficients [N, D] of images uint8 [N, C, H, W]."""
    count, channels, size, _ = images.shape
    network = ScatteringNetwork(channels, size, seed=0, orientations=8, projection=None).eval()
    normalise = GroupNorm(27, 81 * channels)
    parts = [
        normalise(network.coefficients(as_float(torch.from_numpy(images[first : first + 1024]))))
        for first in range(0, count, 1024)
    ]
    return torch.cat(parts)


def vectors(backbone: Backbone, queries: terrine.Queries, *splits: np.ndarray) -> list[Tensor]:
    """Return the vectors [N, d + 1] of each split's images that `aggregation.mechanism: gradients` adds up."""
    public = features_in_batches(backbone, queries.inputs, queries.batches, "original", torch.device("cpu"))
    whitening = Whitening.fit(public)
    return [
        torch.from_numpy(np.concatenate(list(features_one_by_one(backbone, images, whitening.vectors))))
        for images in splits
    ]


def network(model: str, inputs: Tensor, classes: int) -> nn.Module:
    """Return what is trained."""
    if model != "cnn":
        return nn.Linear(inputs.shape[1], classes)
    channels, size = inputs.shape[1], inputs.shape[2]
    layers = nn.Sequential(
        nn.Conv2d(channels, 16, 8, 2, padding=2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten(),
    )  # fmt: skip
    width = layers(torch.zeros(1, channels, size, size)).shape[1]
    return nn.Sequential(*layers, nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, classes))


def train(
    inputs: Tensor, labels: Tensor, model: nn.Module, recipe: Recipe, *, epsilon: float, seed: int
) -> dict[str, float]:
    """Train `model` in place with Opacus; return the ε spent at `DELTA`: by its accountant, and for exchanging."""
    from opacus import PrivacyEngine

    torch.manual_seed(seed)
    records = torch.utils.data.TensorDataset(inputs, labels)
    loader = torch.utils.data.DataLoader(records, batch_size=min(recipe.batch, len(records)))
    optimiser = torch.optim.SGD(model.parameters(), lr=recipe.rate, momentum=recipe.momentum)
    engine = PrivacyEngine(accountant="prv")
    model.train()
    wrapped, optimiser, criterion, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimiser,
        criterion=nn.CrossEntropyLoss(),
        data_loader=loader,
        target_epsilon=epsilon,
        target_delta=DELTA,
        epochs=recipe.epochs,
        max_grad_norm=recipe.clip,
        grad_sample_mode="ghost",
        noise_generator=torch.Generator().manual_seed(seed),
    )
    for _ in range(recipe.epochs):
        for batch, targets in loader:
            if len(batch):
                optimiser.zero_grad()
                criterion(wrapped(batch), targets).backward()
                optimiser.step()
    rounds = sum(steps for _, _, steps in engine.accountant.history)
    ((sigma, rate, _),) = engine.accountant.history
    return {
        "epsilon": float(engine.get_epsilon(DELTA)),
        "exchanged": exchanged(sigma, rate, rounds, DELTA, step=3e-4),
        "sigma": sigma,
    }


def measure(
    splits: list[Tensor], dataset: Any, model: str, recipe: Recipe, epsilon: float, seed: int
) -> dict[str, float]:
    """Return accuracy on the test split and ε of one training."""
    train_inputs, test_inputs = splits
    torch.manual_seed(seed)
    made = network(model, train_inputs, dataset.classes)
    labels = torch.from_numpy(np.asarray(dataset.train_labels, np.int64))
    spent = train(train_inputs, labels, made, recipe, epsilon=epsilon, seed=seed)
    made.eval()
    with torch.no_grad():
        found = torch.cat([made(part).argmax(1) for part in test_inputs.split(2048)]).numpy()
    return {"accuracy": float((found == dataset.test_labels).mean()), **spent}


def main() -> None:
    """Print one row of a Markdown table for each budget."""
    options = common_options(__doc__, root=datasets(), work=KEPT / "dp_sgd.jsonl", seeds=[0, 1, 2])
    options.add_argument("--data", default="mnist")
    options.add_argument("--model", choices=sorted(RECIPES), default="scatternet")
    options.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 2.0, 3.0])
    options.add_argument("--rate", type=float, help="instead of the recipe's")
    options.add_argument("--compare", action="store_true", help="write docs/measurements/comparison.json")
    chosen = options.parse_args()
    recipe = RECIPES[chosen.model]
    if chosen.rate:
        recipe = Recipe(recipe.batch, recipe.epochs, chosen.rate, recipe.clip, recipe.momentum)
    colour = chosen.data not in {"mnist", "fashion_mnist", "digits", "pneumoniamnist"}
    dataset = load_dataset(chosen.data, root=Path(chosen.root), download=False, size=28, channels=3 if colour else 1)
    images = [np.asarray(dataset.train_images), np.asarray(dataset.test_images)]
    if chosen.model == "scatternet":
        splits = [scatternet(part) for part in images]
    elif chosen.model == "cnn":
        splits = [as_float(torch.from_numpy(part)) * 2 - 1 for part in images]
    else:
        queries = terrine.draw({"dead_leaves": 1, "stylegan": 1}, count=QUERIES, like=dataset, seed=0)
        backbone = terrine.Scattering(projection=FEATURES, invariance=True).fit(queries)
        splits = vectors(backbone, queries, *images)
    kept = Cells(chosen.work)
    draws: dict[float, list[dict[str, float]]] = {epsilon: [] for epsilon in PUBLISHED}
    heading("data", "model", "ε asked", "ε, added or removed", "ε, exchanged", "accuracy %")
    for epsilon in chosen.epsilon:
        found = [
            kept.get(
                f"{chosen.data} {chosen.model} {recipe} {epsilon:g} {seed}",
                lambda e=epsilon, s=seed: measure(splits, dataset, chosen.model, recipe, e, s),
            )
            for seed in chosen.seeds
        ]
        spent = [f"{max(cell[kind] for cell in found):.3f}" for kind in ("epsilon", "exchanged")]
        row(chosen.data, chosen.model, f"{epsilon:g}", *spent, spread(cell["accuracy"] for cell in found))
        nearest = min(PUBLISHED, key=lambda column: abs(column - epsilon))
        draws[nearest] = [{"accuracy": cell["accuracy"], "replaced": cell["exchanged"]} for cell in found]
    if chosen.compare:
        shown = "" if set(chosen.epsilon) <= set(PUBLISHED) else f" at ε = {', '.join(map(str, chosen.epsilon))}"
        command = f"python -m benchmarks.dp_sgd --model {chosen.model} --epsilon {' '.join(map(str, chosen.epsilon))}"
        rows = comparison_rows(f"DP-SGD by Opacus, {NAMES[chosen.model]}{shown}", list(draws.values()))
        seeds = len(chosen.seeds)
        store(
            f"comparison/{chosen.data.replace('_', '-')}",
            comparison_columns(PUBLISHED),
            rows,
            command=f"{command} --seeds {' '.join(map(str, chosen.seeds))} --compare",
            seeds=seeds,
            spread="standard deviation over seeds" if seeds > 1 else None,
        )


if __name__ == "__main__":
    main()
