"""Published releases at their exact ε: what was asked and answered, with which noise, is all that it takes.

    python -m benchmarks.published

The exact ε needs no votes, no data and no accuracy: only the numbers of tests and answers and their noise. The papers
print these (Li et al. 2023, Tables 5 to 20), or their scripts hold them (Papernot et al. 2018: research/pate_2018 of
TensorFlow Privacy). LNMax has a scale of 20 votes there. TTAC's averages without noise let one record move the votes of
all parties. docs/measurements/papers.json and heterogeneous.json have the tables.
"""

from itertools import product

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

SCALABLE: list[tuple[str, str, float, tuple[float, ...], str]] = [
    ("MNIST, LNMax, 100 answers", "2.04", 1e-5, (20, 100), "98.0"),
    ("MNIST, LNMax, 1,000 answers", "8.03", 1e-5, (20, 1_000), "98.1"),
    ("MNIST, Confident, 286 of 640", "1.97", 1e-5, (640, 150, 286, 40), "98.5"),
    ("SVHN, LNMax, 500 answers", "5.04", 1e-6, (20, 500), "82.7"),
    ("SVHN, LNMax, 1,000 answers", "8.19", 1e-6, (20, 1_000), "90.7"),
    ("SVHN, Confident, 3,098 of 8,500", "4.96", 1e-6, (8_500, 200, 3_098, 40), "91.6"),
    ("Adult, Confident, 524 of 1,500", "1.90", 1e-5, (1_500, 200, 524, 40), "83.7"),
    ("Glyph, Confident, 10,762 of 12,000", "2.03", 1e-8, (12_000, 500, 10_762, 100), "75.5"),
]
"""Row, published ε, δ, what was released (scale and answers, or tests, σ1, answers, σ2), the published student."""

PROM: list[tuple[str, str, str, tuple[float, ...], str]] = [
    ("1, 3, 6, 7, 9-11", "CIFAR-10, Swin, 1,000 teachers", "1.019", (1_000, 200, 684, 50), "97.07 ± 0.50"),
    ("5", "blood cells, Prom-PATE", "1.973", (1_000, 150, 455, 20), "69.93"),
    ("5", "blood cells, Transfer-PATE", "1.983", (1_000, 150, 408, 20), "61.33"),
    ("6", "CIFAR-10, 100 teachers", "1.095", (1_000, 150, 18, 50), "59.20 ± 0"),
    ("6", "CIFAR-10, 250 teachers", "1.095", (1_000, 150, 46, 100), "85.87 ± 0.55"),
    ("6", "CIFAR-10, 500 teachers", "1.04", (1_000, 150, 90, 100), "96.53 ± 0.74"),
    ("7", "CIFAR-10, ResNet50", "1.081", (1_000, 200, 461, 50), "95.27 ± 0.80"),
    ("7", "CIFAR-10, ViT", "1.007", (1_000, 200, 660, 50), "95.53 ± 0.51"),
    ("9", "CIFAR-10, without mask", "1.017", (1_000, 200, 675, 50), "96.53 ± 0.32"),
    ("10", "CIFAR-10, random mapping", "1.042", (1_000, 200, 109, 50), "33.4 ± 0.66"),
    ("10", "CIFAR-10, mapping of two layers", "1.026", (1_000, 200, 336, 50), "96.13 ± 0.41"),
    ("11", "CIFAR-10, inner 64 of 224", "1.028", (1_000, 200, 408, 50), "93.03 ± 1.0"),
    ("13", "SVHN", "3.022", (2_000, 50, 105, 10), "49.13 ± 3.13"),
    ("14", "EuroSAT", "3.018", (1_000, 100, 150, 10), "94.37 ± 0.15"),
    ("15", "PathMNIST", "1.024", (1_000, 100, 91, 50), "68.50 ± 0.40"),
    ("16", "TissueMNIST", "2.008", (2_000, 100, 842, 50), "49.87 ± 0.57"),
    ("17", "DermaMNIST", "1.861", (1_000, 100, 806, 200), "60.34 ± 0.31"),
    ("18", "CelebA-Gender, Swin, 1,000 teachers", "1.555", (1_000, 100, 707, 200), "93.17 ± 0.06"),
    ("18", "CelebA-Gender, Swin, 2,000 teachers, σ1 as printed", "1.528", (1_000, 1_000, 794, 500), "92.83 ± 0.20"),
    ("18", "the same with σ1 = 100", "1.528", (1_000, 100, 794, 500), "92.83 ± 0.20"),
    ("19", "CelebA-Hair, Swin, 1,000 teachers", "1.531", (1_000, 100, 378, 200), "85.40 ± 0.40"),
    ("20", "FFHQ-Gender, Swin, 1,000 teachers", "1.599", (1_000, 100, 663, 200), "86.93 ± 0.21"),
]
"""Table, release, published ε, tests with σ1 and answers with σ2, the published student (FixMatch)."""

TTAC_PARTIES = 10
"""All of which one record may move, where teachers are averages of all parties' without noise."""


def released(numbers: tuple[float, ...]) -> Event:
    """What was released: (scale, answers) of LNMax, or (tests, σ1, answers, σ2) of Confident-GNMax."""
    if len(numbers) == 2:
        scale, answers = numbers
        return laplace_answers(scale, int(answers))
    tests, sigma1, answers, sigma2 = numbers
    return compose(RepeatedEvent(threshold_test(sigma1), int(tests)), RepeatedEvent(vote_answer(sigma2), int(answers)))


def exact(numbers: tuple[float, ...], delta: float) -> str:
    """Its exact ε, rounded up."""
    return f"{round_up(price(released(numbers), delta), 3):.3f}"


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
