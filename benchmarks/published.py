"""Exact ε of published releases, from the numbers of tests and answers and their noise.

    python -m benchmarks.published

The papers print these numbers (Li et al. 2023, Tables 5 to 20) or their code contains them (Papernot et al. 2018:
research/pate_2018 of TensorFlow Privacy, where LNMax has a scale of 20 votes). Without noise on TTAC's averages one
record can change the votes of all parties.
"""

from itertools import chain, product

from benchmarks.tables import markdown, measurements
from terrine.aggregation.lnmax import LNMax
from terrine.privacy.accounting.events import (
    Event,
    RepeatedEvent,
    compose,
    laplace_answers,
    threshold_test,
    vote_answer,
)
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import price

INTERACTIVE = (6_000, 1_500, 3_400, 100, 10_000, 2_000, 941, 200)
"""Rounds of Glyph's Interactive-GNMax: queries, σ1, answers, σ2 of each.

Numbers of queries and answers: Table 1 and section 5.3. Noise: the authors' generate_table.sh in tensorflow/models,
research/differential_privacy/pate/ICLR2018, commit 2f536d32, which also has σ1 and σ2 of the other rows.
"""
SCALABLE: list[tuple[str, str, float, tuple[float, ...], str]] = [
    ("MNIST, LNMax, 100 answers", "2.04", 1e-5, (20, 100), "98.0"),
    ("MNIST, LNMax, 1,000 answers", "8.03", 1e-5, (20, 1_000), "98.1"),
    ("MNIST, Confident, 286 of 640", "1.97", 1e-5, (640, 150, 286, 40), "98.5"),
    ("SVHN, LNMax, 500 answers", "5.04", 1e-6, (20, 500), "82.7"),
    ("SVHN, LNMax, 1,000 answers", "8.19", 1e-6, (20, 1_000), "90.7"),
    ("SVHN, Confident, 3,098 of 8,500", "4.96", 1e-6, (8_500, 200, 3_098, 40), "91.6"),
    ("Adult, LNMax, 500 answers", "2.66", 1e-5, (20, 500), "83.0"),
    ("Adult, Confident, 524 of 1,500", "1.90", 1e-5, (1_500, 200, 524, 40), "83.7"),
    ("Glyph, LNMax, 4,000 answers, scale not printed", "4.3", 1e-8, (), "72.4"),
    ("Glyph, Confident, 10,762 of 12,000", "2.03", 1e-8, (12_000, 500, 10_762, 100), "75.5"),
    ("Glyph, Interactive, 3,400 of 6,000, then 941 of 10,000", "0.837", 1e-8, INTERACTIVE, "73.2"),
]
"""Row, published ε, δ, numbers of the release (see `event`; none: not printed), the published student in per cent."""

PROM: list[tuple[str, str, str, tuple[float, ...], str]] = [
    ("1, 3, 6, 7, 9-11", "CIFAR-10, Swin, 1,000 teachers", "1.019", (1_000, 200, 684, 50), "97.07 ± 0.50"),
    ("5", "blood cells, Prom-PATE", "1.973", (1_000, 150, 455, 20), "69.93"),
    ("5", "blood cells, Transfer-PATE", "1.983", (1_000, 150, 408, 20), "61.33"),
    ("6", "CIFAR-10, 100 teachers", "1.095", (1_000, 150, 18, 50), "59.20 ± 0"),
    ("6", "CIFAR-10, 250 teachers", "1.095", (1_000, 150, 46, 100), "85.87 ± 0.55"),
    ("6", "CIFAR-10, 500 teachers", "1.04", (1_000, 150, 90, 100), "96.53 ± 0.74"),
    ("7", "CIFAR-10, ResNet50", "1.081", (1_000, 200, 461, 50), "95.27 ± 0.80"),
    ("7", "CIFAR-10, ResNet152", "1.009", (1_000, 200, 604, 50), "95.40 ± 0.40"),
    ("7", "CIFAR-10, WideResNet", "1.068", (1_000, 200, 555, 50), "94.37 ± 0.25"),
    ("7", "CIFAR-10, ViT", "1.007", (1_000, 200, 660, 50), "95.53 ± 0.51"),
    ("9", "CIFAR-10, without mask", "1.017", (1_000, 200, 675, 50), "96.53 ± 0.32"),
    ("10", "CIFAR-10, random mapping", "1.042", (1_000, 200, 109, 50), "33.4 ± 0.66"),
    ("10", "CIFAR-10, mapping of two layers", "1.026", (1_000, 200, 336, 50), "96.13 ± 0.41"),
    ("11", "CIFAR-10, inner 64 of 224", "1.028", (1_000, 200, 408, 50), "93.03 ± 1.0"),
    ("11", "CIFAR-10, inner 128 of 224", "1.016", (1_000, 200, 662, 50), "95.83 ± 0.1"),
    ("11", "CIFAR-10, inner 160 of 224", "1.016", (1_000, 200, 655, 50), "95.07 ± 0.3"),
    ("11", "CIFAR-10, inner 210 of 224", "1.016", (1_000, 200, 655, 50), "95.30 ± 0.5"),
    ("13", "SVHN, Prom-PATE", "3.022", (2_000, 50, 105, 10), "49.13 ± 3.13"),
    ("13", "SVHN, Transfer-PATE", "3.055", (2_000, 50, 88, 10), "42.57 ± 0.23"),
    ("14", "EuroSAT, Prom-PATE", "3.018", (1_000, 100, 150, 10), "94.37 ± 0.15"),
    ("14", "EuroSAT, Transfer-PATE", "3.029", (1_000, 100, 140, 10), "93.87 ± 0.80"),
    ("15", "PathMNIST, Prom-PATE", "1.024", (1_000, 100, 91, 50), "68.50 ± 0.40"),
    ("15", "PathMNIST, Transfer-PATE", "1.021", (1_000, 100, 83, 50), "64.00 ± 2.07"),
    ("16", "TissueMNIST, Prom-PATE", "2.008", (2_000, 100, 842, 50), "49.87 ± 0.57"),
    ("16", "TissueMNIST, Transfer-PATE", "2.017", (2_000, 100, 665, 50), "49.30 ± 0.56"),
    ("17", "DermaMNIST, Prom-PATE", "1.861", (1_000, 100, 806, 200), "60.34 ± 0.31"),
    ("17", "DermaMNIST, Transfer-PATE", "1.852", (1_000, 100, 749, 200), "59.60 ± 0.20"),
    ("18", "CelebA-Gender, Prom-PATE, Swin, 1,000 teachers", "1.555", (1_000, 100, 707, 200), "93.17 ± 0.06"),
    ("18", "CelebA-Gender, Prom-PATE, ViT, 1,000 teachers", "1.55", (1_000, 100, 669, 200), "92.23 ± 0.25"),
    ("18", "CelebA-Gender, Prom-PATE, Swin, 2,000 teachers", "1.528", (1_000, 1_000, 794, 500), "92.83 ± 0.20"),
    ("18", "CelebA-Gender, Transfer-PATE, Swin, 1,000 teachers", "1.552", (1_000, 100, 696, 200), "92.87 ± 0.15"),
    ("18", "CelebA-Gender, Transfer-PATE, ViT, 1,000 teachers", "1.547", (1_000, 100, 673, 200), "91.83 ± 0.23"),
    ("18", "CelebA-Gender, Transfer-PATE, Swin, 2,000 teachers", "1.536", (1_000, 1_000, 789, 500), "92.63 ± 0.35"),
    ("19", "CelebA-Hair, Prom-PATE, Swin, 1,000 teachers", "1.531", (1_000, 100, 378, 200), "85.40 ± 0.40"),
    ("19", "CelebA-Hair, Prom-PATE, ViT, 1,000 teachers", "1.521", (1_000, 100, 359, 200), "87.73 ± 0.15"),
    ("19", "CelebA-Hair, Prom-PATE, Swin, 2,000 teachers", "1.527", (2_000, 100, 517, 450), "81.97 ± 0.67"),
    ("19", "CelebA-Hair, Transfer-PATE, Swin, 1,000 teachers", "1.522", (1_000, 100, 376, 200), "84.73 ± 0.83"),
    ("19", "CelebA-Hair, Transfer-PATE, ViT, 1,000 teachers", "1.530", (1_000, 100, 330, 200), "84.77 ± 0.31"),
    ("19", "CelebA-Hair, Transfer-PATE, Swin, 2,000 teachers", "1.534", (2_000, 100, 535, 500), "81.20 ± 0.17"),
    ("20", "FFHQ-Gender, Prom-PATE, Swin, 1,000 teachers", "1.599", (1_000, 100, 663, 200), "86.93 ± 0.21"),
    ("20", "FFHQ-Gender, Prom-PATE, ViT, 1,000 teachers", "1.605", (1_000, 100, 630, 200), "86.13 ± 0.25"),
    ("20", "FFHQ-Gender, Prom-PATE, Swin, 2,000 teachers", "1.52", (2_000, 90, 1_331, 450), "85.87 ± 0.35"),
    ("20", "FFHQ-Gender, Transfer-PATE, Swin, 1,000 teachers", "1.604", (1_000, 100, 653, 200), "86.07 ± 0.06"),
    ("20", "FFHQ-Gender, Transfer-PATE, ViT, 1,000 teachers", "1.602", (1_000, 100, 620, 200), "84.47 ± 0.21"),
    ("20", "FFHQ-Gender, Transfer-PATE, Swin, 2,000 teachers", "1.562", (2_000, 100, 1_270, 500), "84.83 ± 0.40"),
]
"""Table, release, published ε, numbers of the release, the published student (FixMatch) in per cent."""

TTAC_PARTIES = 10
"""All of which one record may move, where teachers are averages of all parties' without noise."""


def event(numbers: tuple[float, ...]) -> Event:
    """Return the event of a release: (scale, answers) of LNMax, or (tests, σ1, answers, σ2) of each round."""
    if len(numbers) == 2:
        return laplace_answers(numbers[0], int(numbers[1]))
    rounds = [numbers[first : first + 4] for first in range(0, len(numbers), 4)]
    parts = [
        (RepeatedEvent(threshold_test(sigma1), int(tests)), RepeatedEvent(vote_answer(sigma2), int(answers)))
        for tests, sigma1, answers, sigma2 in rounds
    ]
    return compose(*chain.from_iterable(parts))


def exact(numbers: tuple[float, ...], delta: float) -> str:
    """Return the exact ε, rounded up; a dash if the noise is not printed."""
    return f"{round_up(price(event(numbers), delta), 3):.3f}" if numbers else "–"


def averaged(answers: int, gamma: float) -> list[str]:
    """Return ε of LNMax's answers as TTAC claims it, if a record moves one vote, and if it may move all parties'."""
    scale = 1 / gamma
    events = [laplace_answers(scale, answers, moved) for moved in (1, TTAC_PARTIES)]
    epsilons = LNMax(scale=scale).claimed(answers, answers, 1e-5), *(price(event, 1e-5) for event in events)
    return [f"{answers:,}", f"{gamma:g}", *(f"{round_up(epsilon, 2):,.2f}" for epsilon in epsilons)]


def rows() -> dict[str, list[list[str]]]:
    """The cells of each table."""
    return {
        "papers/scalable-pate": [
            [name, published, f"{delta:.0e}".replace("e-0", "e-"), exact(numbers, delta), student]
            for name, published, delta, numbers, student in SCALABLE
        ],
        "papers/prom-pate": [
            [table, name, published, exact(numbers, 1e-5), student] for table, name, published, numbers, student in PROM
        ],
        "heterogeneous/claimed": [averaged(answers, gamma) for answers, gamma in product((100, 1_000), (0.1, 0.5))],
    }


def main() -> None:
    for name, cells in rows().items():
        print(markdown(measurements()[name]["columns"], cells), end="\n\n")


if __name__ == "__main__":
    main()
