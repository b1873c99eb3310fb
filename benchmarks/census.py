"""Sums over a census table at several budgets, beside logistic regression without privacy.

    python benchmarks/census.py CSV PRESET [--repeats 5]

CSV is UCI Adult (adult.data with a header) or a table like it, and PRESET a YAML file with its `data.target` and
`data.columns`. A fifth of the rows is held out. Each repeat draws another split, artificial rows and noise (replayed).
"Logistic regression, plain" has standardised numbers and indicators, as usual; "same features" has the hat functions of
the private students. ε is that of replacing a row; the one of adding or removing a row is printed beside it.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from cells import row, spread
from sklearn.linear_model import LogisticRegression

import terrine as tr
from terrine.aggregation.records import Records, Whitening
from terrine.aggregation.sums import mu_left
from terrine.data.sources.table import Table
from terrine.privacy.noise import ReplayNoise

DELTA = 1e-5
EPSILONS = (0.1, 0.3, 1, 4)
ARTIFICIAL = 5000


def accuracies(table: Table, seed: int) -> Iterator[tuple[str, float]]:
    """Yield the name and the test accuracy, as a share, of each method for one split of the rows."""
    encoding, data = table.declared_encoding(), table.load(seed=seed)
    assert encoding is not None
    drawn = encoding.apply(encoding.draw(ARTIFICIAL, np.random.default_rng(seed)), "drawn rows")
    whitening = Whitening.fit(drawn)
    records = Records.of(
        whitening.vectors(data.train_images), data.train_labels, np.arange(len(data.train_labels)), data.classes
    )
    tested = whitening.vectors(data.test_images)
    for mechanism in (tr.Gradients(), tr.Moments()):
        for epsilon in EPSILONS:
            mu = mu_left(epsilon, DELTA)
            head = mechanism.head(mechanism.release(records, mu, ReplayNoise(seed)), mu)
            right = (tested @ head).argmax(axis=1) == data.test_labels
            yield f"{mechanism.mechanism}, ε = {epsilon:g}", float(right.mean())
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("preset", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    settings = yaml.safe_load(chosen.preset.read_text(encoding="utf-8"))["data"] | {"path": chosen.csv.absolute()}
    table = Table(**settings)
    found = pd.DataFrame([dict(accuracies(table, seed)) for seed in range(chosen.repeats)])
    for name in found:
        row(name, spread(found[name]))


if __name__ == "__main__":
    main()
