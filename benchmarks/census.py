"""Sums over a census table at several budgets, beside logistic regression without privacy.

    python -m benchmarks.census CSV [--preset benchmarks/census.yaml] [--repeats 5]
    python -m benchmarks.census CSV --compare     # at the add/remove ε of published figures: docs/results/comparison.md

CSV is UCI Adult (adult.data with a header) or a table like it, and the preset a YAML file with its `data.target` and
`data.columns`. A fifth of the rows is held out. Each repeat draws another split, artificial rows and noise (replayed).
"Logistic regression, plain" has standardised numbers and indicators, as usual; "same features" has the hat functions of
the private students. ε is that of replacing a row; with `--compare`, of adding or removing one.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from sklearn.linear_model import LogisticRegression

import terrine as tr
from benchmarks.cells import common_options, row, spread
from benchmarks.comparison import PUBLISHED, comparison_columns, comparison_rows, store
from benchmarks.features import sums_budget
from terrine.aggregation.records import Records, Whitening
from terrine.aggregation.sums import Sums
from terrine.data.sources.table import Table
from terrine.privacy.noise import ReplayNoise

DELTA = 1e-5
EPSILONS = (0.1, 0.3, 1, 4)
ARTIFICIAL = 5000


def private(
    table: Table, seed: int, mechanism: Sums, epsilons: Sequence[float], *, added: bool = False
) -> Iterator[dict[str, float]]:
    """Yield accuracy and ε under both relations (`sums_budget`) at each ε, for one split of the rows."""
    encoding, data = table.declared_encoding(), table.load(seed=seed)
    assert encoding is not None
    drawn = encoding.apply(encoding.draw(ARTIFICIAL, np.random.default_rng(seed)), "drawn rows")
    whitening = Whitening.fit(drawn)
    records = Records.of(
        whitening.vectors(data.train_images), data.train_labels, np.arange(len(data.train_labels)), data.classes
    )
    tested = whitening.vectors(data.test_images)
    for epsilon in epsilons:
        mu, one, other = sums_budget(mechanism, epsilon, DELTA, added=added)
        head = mechanism.head(mechanism.release(records, mu, ReplayNoise(seed)), mu)
        right = (tested @ head).argmax(axis=1) == data.test_labels
        yield {"accuracy": float(right.mean()), "added": one, "replaced": other}


def logistic(table: Table, seed: int) -> Iterator[tuple[str, float]]:
    """Yield the name and the accuracy of each logistic regression without privacy, for one split of the rows."""
    encoding, data = table.declared_encoding(), table.load(seed=seed)
    assert encoding is not None
    linear = [np.array(column.knots)[:, None] for column in encoding.columns if column.values is None]
    size = sum(map(len, linear))
    plain = np.zeros((data.train_images.shape[1], len(linear) + data.train_images.shape[1] - size))
    place, number, word = 0, 0, len(linear)
    for column in encoding.columns:
        width = len(column.values or column.knots)
        if column.values is None:
            plain[place : place + width, number] = (np.array(column.knots) - column.knots[0]) / np.ptp(column.knots)
            number += 1
        else:
            plain[place : place + width, word : word + width] = np.eye(width)
            word += width
        place += width
    for name, matrix in (("plain", plain), ("same features", np.eye(len(plain)))):
        features = data.train_images @ matrix
        scale = features.std(axis=0) + 1e-9 if name == "plain" else 1.0
        fitted = LogisticRegression(max_iter=1000).fit(features / scale, data.train_labels)
        yield f"logistic regression, {name}", fitted.score(data.test_images @ matrix / scale, data.test_labels)


def main() -> None:
    parser = common_options(__doc__, repeats=5)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--preset", type=Path, default=Path(__file__).with_suffix(".yaml"))
    parser.add_argument("--compare", action="store_true", help="at the ε of published figures")
    chosen = parser.parse_args()
    settings = yaml.safe_load(chosen.preset.read_text(encoding="utf-8"))["data"] | {"path": chosen.csv.absolute()}
    table, seeds = Table(**settings), range(chosen.repeats)
    if chosen.compare:
        epsilons = (0.07, *PUBLISHED)
        draws = zip(*(private(table, seed, tr.Gradients(), epsilons, added=True) for seed in seeds), strict=True)
        store(
            "comparison/adult",
            comparison_columns(epsilons),
            comparison_rows("gradients", list(draws)),
            command="python -m benchmarks.census CSV --compare",
            seeds=chosen.repeats,
            spread="standard deviation over splits, artificial rows and draws of the noise",
        )
        return
    for mechanism in (tr.Gradients(), tr.Moments()):
        draws = zip(*(private(table, seed, mechanism, EPSILONS) for seed in seeds), strict=True)
        for epsilon, cells in zip(EPSILONS, draws, strict=True):
            row(f"{mechanism.mechanism}, ε = {epsilon:g}", spread(cell["accuracy"] for cell in cells))
    found = pd.DataFrame([dict(logistic(table, seed)) for seed in seeds])
    for name in found:
        row(name, spread(found[name]))


if __name__ == "__main__":
    main()
