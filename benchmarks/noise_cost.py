"""What noise costs sums of gradients in accuracy, by the signal that `terrine check` prints.

    python benchmarks/noise_cost.py [--root FOLDER] [--repeats 2] [--data digits ...]

Features and budgets are those of `benchmarks/groups.py`. Each row is for one number of people, of images each and ε:
the signal, the accuracies with and without noise on 1,500 test images, and their difference in points, as in the
private report of a run. The last lines are the ranges for the signals in `terrine.planning.COST_OF_NOISE`.
"""

import itertools

import numpy as np
from cells import common_options, datasets, heading, row
from features import vectors_of
from groups import DATA, DELTA, FEATURES, MOMENTS, Study

import terrine as tr
from terrine.aggregation.sums import mu_left
from terrine.models.released_statistics import bound_for, statistics_from, unit_vectors
from terrine.planning import COST_OF_NOISE, signal_of_sums
from terrine.privacy.accounting.gaussian import mu_of
from terrine.privacy.noise import ReplayNoise
from terrine.privacy.noised_sum import ClippedMean

EPSILONS = (0.5, 1, 2, 4, 8)
CIFAR = "CIFAR-10 (JPEG copy)"
DATA[CIFAR] = (DATA[f"{CIFAR}, animals"][0], None, [])
CELLS = {
    "digits": [(450, 3), (1_400, 1)],
    "blood cells": [(100, 40), (222, 9), (500, 5), (1_000, 10), (1_000, 1), (4_000, 1)],
    "pneumonia": [(150, 9), (1_000, 1), (3_500, 1)],
    CIFAR: [(500, 10), (4_000, 1), (12_000, 1)],
}


def accuracies(study: Study, people: int, images: int, epsilon: float, seed: int) -> tuple[float, float]:
    """Return the accuracy with noise and without, for one draw of the noise."""
    own, labels, person, tested = study.people("random", people, images)
    rows, test = study.coefficients(own), study.coefficients(tested)
    moments, noise, gradients = ClippedMean.for_share(MOMENTS, epsilon, DELTA), ReplayNoise(seed), tr.Gradients()
    bound, mu = bound_for(study.backbone, people, moments.noise_multiplier), mu_left(epsilon, DELTA, moments.event)
    whole = np.concatenate(list(unit_vectors(study.backbone, own, person, 1.0)))
    released = statistics_from(study.backbone, *moments.mean(moments.release([whole / bound], noise)), bound)
    stored = released["mean"], released["variance"] + study.backbone.network.standardise.eps
    kept = {"queries": study.queries, "train": study.features(rows, *stored), "labels": labels}
    kept |= {"test": study.features(test, *stored), "test_labels": study.test_labels}
    summed, vectors, _ = vectors_of(kept, person)
    heads = gradients.head(gradients.release(summed, mu, noise), mu), gradients.exact_head(summed, mu)
    noisy, exact = (float(((vectors @ head).argmax(axis=1) == study.test_labels).mean()) for head in heads)
    return noisy, exact


def main() -> None:
    """Measure, and print the table."""
    parser = common_options(__doc__, root=datasets(), repeats=2)
    parser.add_argument("--data", choices=list(CELLS), nargs="+", default=list(CELLS))
    options = parser.parse_args()
    heading("data", "people", "images of each", "ε", "signal", "with noise %", "without %", "cost")
    costs: list[tuple[float, float]] = []
    for name in options.data:
        study = Study(name, options.root)
        for (people, images), epsilon in itertools.product(CELLS[name], EPSILONS):
            about = {"classes": study.data.classes, "features": FEATURES + 1}
            signal = signal_of_sums(people, mu_of(epsilon, DELTA), **about)
            if signal < min(COST_OF_NOISE):
                continue
            found = [accuracies(study, people, images, epsilon, seed) for seed in range(options.repeats)]
            noisy, exact = 100 * np.mean(found, axis=0)
            costs.append((signal, exact - noisy))
            row(
                name,
                f"{people:,}",
                images,
                epsilon,
                f"{signal:.1f}",
                f"{noisy:.1f}",
                f"{exact:.1f}",
                f"{exact - noisy:.1f}",
            )
    for least, most in itertools.pairwise([*COST_OF_NOISE, np.inf]):
        if within := [cost for signal, cost in costs if least <= signal < most]:
            print(f"\nFrom a signal of {least} on, noise costs {min(within):.1f} to {max(within):.1f} points.")


if __name__ == "__main__":
    main()
