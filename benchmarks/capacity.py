"""Bound on the information in DPSD's annotations and on the accuracy of its student, with a plot.

    python -m benchmarks.capacity [--out docs/papers]

A student learns about private data only through noisy annotations. m clients' vectors of length β sum up to at most mβ,
and each coordinate gets noise of deviation σβ, so a sample carries at most m²/(2σ²) nats for any β and number of
classes. bT samples, with μ² = 4bT/σ², carry the following; so do T batches with μ² = 4T/σ² (`annotation.norm`):

    m² μ² / (8 ln 2) bits.

It depends only on μ, and so on ε and δ: no other batch size, β or number of iterations carries more at the same ε.

To tell digits apart a student must know which class is which. Rename the classes of the private data by a random,
unknown permutation. Averaged over permutations, the student names at most a share a correctly, with R(a) the number
of bits in the annotations. R(a) = log2 K! − H, with H the largest entropy of a permutation that agrees with a share a
of the true one (Shannon's lower bound on rate and distortion). Giving two classes one name does not
help: the factorial moments of the share are largest for permutations. The bound is generous: it grants the student
everything else about the images.

Accuracies are read from docs/measurements/transcription.json.
"""

import json
import math
import re
from pathlib import Path

from scipy.optimize import brentq

from benchmarks.cells import common_options
from benchmarks.pate_figures import canvas, save
from benchmarks.tables import MEASUREMENTS
from terrine.privacy.accounting.gaussian import epsilon_of, mu_of

CLASSES = 10
DELTA = 1e-5


def told_bits(mu: float, clients: int = 1) -> float:
    """Return the most bits that Gaussian annotations of total μ carry about private data."""
    return clients**2 * mu**2 / (8 * math.log(2))


def response_bits(epsilon: float, categories: int, answers: int) -> float:
    """Return the most bits that answers by randomised response carry: log2 k less the entropy of one, each."""
    true = math.exp(epsilon) / (math.exp(epsilon) + categories - 1)
    other = (1 - true) / (categories - 1)
    entropy = -true * math.log2(true) - (categories - 1) * other * math.log2(other)
    return answers * (math.log2(categories) - entropy)


def fixed_points(classes: int) -> list[int]:
    """Count the permutations of `classes` elements with 0, 1, ..., all fixed points."""
    derangements = [1, 0]
    for count in range(2, classes + 1):
        derangements.append((count - 1) * (derangements[-1] + derangements[-2]))
    return [math.comb(classes, kept) * derangements[classes - kept] for kept in range(classes + 1)]


def naming_bits(accuracy: float, classes: int = CLASSES) -> float:
    """Return R(accuracy): the bits it takes to name that share of the classes, on average; 0 up to 1/classes."""
    if accuracy <= 1 / classes:
        return 0.0
    numbers = fixed_points(classes)
    if accuracy >= 1:
        return math.log2(math.factorial(classes))

    def weights(tilt: float) -> list[float]:
        found = [number * math.exp(tilt * (kept - classes)) for kept, number in enumerate(numbers)]
        return [weight / sum(found) for weight in found]

    def mean(tilt: float) -> float:
        return sum(kept * weight for kept, weight in enumerate(weights(tilt))) / classes

    chosen = weights(brentq(lambda tilt: mean(tilt) - accuracy, 0.0, 60.0))
    entropy = sum(w * math.log2(n / w) for w, n in zip(chosen, numbers, strict=True) if w > 0)
    return math.log2(math.factorial(classes)) - entropy


def best_accuracy(bits: float, classes: int = CLASSES) -> float:
    """Compute the largest average share of classes that `bits` bits can name."""
    if bits >= naming_bits(1.0, classes):
        return 1.0
    return float(brentq(lambda accuracy: naming_bits(accuracy, classes) - bits, 1 / classes, 1 - 1e-12))


def needed_epsilon(accuracy: float, clients: int = 1, delta: float = DELTA) -> float:
    """Compute the smallest ε at which annotations of `clients` clients can train a student that accurate."""
    return epsilon_of(math.sqrt(8 * math.log(2) * naming_bits(accuracy)) / clients, delta)


def points() -> list[tuple[str, str, float, float]]:
    """Return (group, name, bits, accuracy in per cent) of what docs/results/transcription.md shows of MNIST."""
    known = json.loads((MEASUREMENTS / "transcription.json").read_text(encoding="utf-8"))

    def rows(name: str) -> list[list[str]]:
        return [row for block in known[name]["measured"] for row in block["rows"]]

    found = []
    for row in rows("many-teachers"):
        clients, epsilon = (int(number) for number in re.findall(r"\d+", row[0]))
        found.append(("many clients", row[0], told_bits(mu_of(epsilon, DELTA), clients), _mean(row[1])))
    published = {row[0]: row for row in rows("published")}
    for name, releases, clients in (
        ("DPSD, norm of the batch", 200, 1),
        ("DPSD, norm of a sample (`dpsd-mnist-small`)", 51_200, 1),
        (next(name for name in published if name.startswith("FedDPSD")), 51_200, 5),
    ):
        bits = told_bits(math.sqrt(4 * releases / 100**2), clients)
        found.append(("as published", name.partition(" (")[0], bits, _mean(published[name][1])))
    answers = published["labels, ε = 1 an answer (`dpsd-mnist-answers`)"]
    found.append(
        ("as published, for labels", "labels, ε = 1 an answer", response_bits(1.0, 3, 51_200), _mean(answers[1]))
    )
    return found


def _mean(cell: str) -> float:
    return float(cell.split(" ")[0])


def draw(path: Path) -> None:
    """Accuracy against bits: ours, the paper's, and what no student can pass."""
    figure, ax = canvas(1)
    grid = [0.03 * 1.15**step for step in range(110)]
    bound = [100 * best_accuracy(bits) for bits in grid]
    ax.plot(grid, bound, "k", label="no student above this line")
    ax.fill_between(grid, bound, 100, color="#f3e3e3")
    for (group, marker), colour in zip(
        {"as published": "o", "as published, for labels": "s", "many clients": "^"}.items(),
        ("C3", "C1", "C0"),
        strict=True,
    ):
        some = [point for point in points() if point[0] == group]
        ax.plot(
            [p[2] for p in some], [p[3] for p in some], marker, color=colour, markersize=8, label=f"{group}, measured"
        )
    ax.plot(
        [told_bits(math.sqrt(20.48))],
        [96.03],
        "*",
        color="C3",
        markersize=14,
        label="the paper's figure, ε = 1 claimed",
    )
    ax.axvline(naming_bits(1.0), color="grey", linestyle=":")
    ax.text(naming_bits(1.0) * 1.15, 45, "log2 10! = 21.8", color="#555555")
    ax.set(xscale="log", xlim=(0.03, 1e5), ylim=(0, 103), ylabel="student on MNIST, %")
    ax.set_xlabel("bits that the noisy annotations can carry, at most")
    ax.legend(loc="upper center", bbox_to_anchor=(0.45, -0.16), ncol=2, fontsize=10)
    save(figure, path)


def main() -> None:
    parser = common_options(__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/papers"))
    for group, name, bits, accuracy in points():
        print(f"{group:26} {name:50} {bits:12.1f} bits   at most {100 * best_accuracy(bits):5.1f} %   has {accuracy} %")
    for accuracy in (0.5, 0.8, 0.9603, 0.9785, 1.0):
        needed = ", ".join(f"{clients}: {needed_epsilon(accuracy, clients):.3g}" for clients in (1, 5, 50, 200))
        print(f"{accuracy:.2%} takes {naming_bits(accuracy):.2f} bits; ε by clients at least {needed}")
    draw(parser.parse_args().out / "dpsd-capacity.svg")


if __name__ == "__main__":
    main()
