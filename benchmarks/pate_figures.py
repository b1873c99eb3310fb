"""The SVHN rows of Scalable PATE's Table 1, and its Figures 1, 4 and 5, from votes at hand.

    python -m benchmarks.pate_figures [--root DATASETS] [--out docs/papers]

The votes are those of 250 teachers about 2,000 SVHN images that the authors of PATE published,
pate-votes/svhn_250_teachers_2000_queries.npy (uint8 [teachers, queries]). They are not the ensemble of the paper's
table, and the images' classes are not at hand, so an answer is called right where it is the class that most of the 250
teachers name. Noise is replayed; ± is the standard deviation over five draws of it. benchmarks/published.py has the
exact ε of all rows, which needs no votes.
"""

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.cells import common_options, datasets, spread
from tasks.pipeline.vote_costs import CostQuery, account
from tasks.tools.vote_files import read_histograms
from terrine.aggregation.gnmax import ConfidentGNMax
from terrine.privacy.accounting.data_dependent import gnmax_rdp, log_p_answered, log_q_gnmax, summed
from terrine.privacy.accounting.events import RepeatedEvent, laplace_answers, threshold_test, vote_answer
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.accounting.renyi import convert, default_orders
from terrine.privacy.noise import ReplayNoise

Histograms = NDArray[np.int64]
Row = tuple[float, NDArray[np.float64], float, float]
VOTES = Path("pate-votes") / "svhn_250_teachers_2000_queries.npy"
QUERIES = 1_000
"""Answers that a point of the first two plots pays for, as a row of LNMax in the paper's table does."""
DELTA = 1e-6
"""The paper's for SVHN."""
DRAWS = 5
SCALE = 20.0
"""Laplace scale of LNMax in the paper's MNIST and SVHN rows."""
SIGMA = 40.0
"""σ2 of Confident-GNMax there."""


def table(histograms: Histograms) -> None:
    """Print every ε of the SVHN rows on the votes at hand."""
    mechanism = ConfidentGNMax(threshold=300, sigma1=200, sigma2=SIGMA)
    answered = mechanism.answer(histograms, epsilon=1e6, delta=DELTA, noise=ReplayNoise(0)).answered
    asked: list[tuple[str, Histograms, dict[str, float | str], NDArray[np.bool_] | None]] = [
        ("LNMax, 500", histograms[:500], {"mechanism": "lnmax", "scale": SCALE}, None),
        ("LNMax, 1,000", histograms[:1_000], {"mechanism": "lnmax", "scale": SCALE}, None),
        (
            f"Confident, {len(histograms):,} tests, {answered.sum()} answers",
            histograms,
            {"mechanism": "confident", "threshold": 300, "sigma1": 200, "sigma": SIGMA},
            answered,
        ),
    ]
    for name, counts, settings, given in asked:
        for conversion in ("classical", "improved"):
            sanitise = given is not None
            query = CostQuery(**settings, delta=DELTA, conversion=conversion, sanitise=sanitise)
            found = account(counts, query, given)
            clean = found["sanitised"]
            print(
                f"votes at hand: {name:40} {conversion:10} exact {round_up(found['exact']['epsilon'], 3):7.3f}   "
                f"independent {round_up(found['data_independent']['epsilon'], 3):7.3f}   "
                f"data-dependent {round_up(found['data_dependent']['epsilon'], 3):7.3f}"
                + (f"   sanitised {clean['mean']:.3f} ± {clean['standard_deviation']:.3f}" if clean else "")
            )


def right(
    histograms: Histograms, truth: Histograms, noise: Callable[[tuple[int, ...]], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return the share of noisy winners [queries] that are the class `truth` [queries], of each draw [DRAWS]."""
    return np.array([((histograms + noise(histograms.shape)).argmax(1) == truth).mean() for _ in range(DRAWS)])


def by_noise(histograms: Histograms, truth: Histograms, scales: Iterable[float], kind: str) -> list[Row]:
    """Return (noise, shares right by draw, exact ε, data-dependent ε) of QUERIES answers at each scale of the noise."""
    source = ReplayNoise(1)
    rows = []
    for scale in scales:
        if kind == "lnmax":
            share = right(histograms, truth, lambda shape, b=scale: source.laplace(shape, b))
            query = CostQuery("lnmax", delta=DELTA, scale=scale)
        else:
            share = right(histograms, truth, lambda shape, s=scale: source.gaussian(shape, s))
            query = CostQuery("gnmax", delta=DELTA, sigma=scale)
        found = account(histograms[:QUERIES], query)
        rows.append((scale, share, found["exact"]["epsilon"], found["data_dependent"]["epsilon"]))
    return rows


def at_share(rows: list[Row], share: float) -> list[list[float]]:
    """Interpolate the exact and the data-dependent ε of each draw at a share of right answers, in log ε."""
    shares = np.array([row[1] for row in reversed(rows)]).T
    logs = [[math.log(row[column]) for row in reversed(rows)] for column in (2, 3)]
    return [[math.exp(np.interp(share, own, log)) for own in shares] for log in logs]


def draw_noise(axes, votes: NDArray[np.uint8], histograms: Histograms) -> None:
    """Figure 4: the noise's distribution (left) and the ensemble's size (right) against the share that is right."""
    truth = histograms.argmax(1)
    curves = {
        "LNMax": by_noise(histograms, truth, np.geomspace(2, 60, 14), "lnmax"),
        "GNMax": by_noise(histograms, truth, np.geomspace(5, 130, 14), "gnmax"),
    }
    for (name, rows), colour in zip(curves.items(), ("C1", "C0"), strict=True):
        axes[0].plot([row[2] for row in rows], [100 * row[1].mean() for row in rows], colour, label=f"{name}, exact")
        axes[0].plot(
            [row[3] for row in rows], [100 * row[1].mean() for row in rows], colour + "--", label=f"{name}, by votes"
        )
    for share in (0.7, 0.8, 0.9):
        for name, rows in curves.items():
            exact, dependent = (spread(draws, scale=1) for draws in at_share(rows, share))
            print(f"{share:.0%} right: {name} exact {exact}, data-dependent {dependent}")
    axes[0].set_title("Distribution of the noise, 250 teachers")
    for teachers, colour in zip((50, 100, 150, 250), ("C3", "C2", "C1", "C0"), strict=True):
        some = np.stack([np.bincount(column, minlength=10) for column in votes[:teachers].T]).astype(np.int64)
        rows = by_noise(some, truth, np.geomspace(5, 130, 14), "gnmax")
        axes[1].plot(
            [row[2] for row in rows], [100 * row[1].mean() for row in rows], colour, label=f"{teachers} teachers"
        )
        print(f"{teachers} teachers: right at exact ε = 10: {_share_at(rows, 10.0)} %, 20: {_share_at(rows, 20.0)} %")
    axes[1].set_title("Number of teachers, GNMax, exact ε")
    for ax in axes:
        ax.set(xscale="log", xlabel=f"ε of {QUERIES:,} answers (δ = 1e-6)", ylabel="answers that are the plurality, %")
        ax.set_xlim(3, 300)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.legend(loc="lower right")


def _share_at(rows: list[Row], epsilon: float) -> str:
    logs, shares = [math.log(row[2]) for row in reversed(rows)], np.array([row[1] for row in reversed(rows)]).T
    return spread(np.interp(math.log(epsilon), logs, own) for own in shares)


def draw_thresholds(axes, histograms: Histograms) -> None:
    """Figure 5: which queries pass a noisy test and what an answer costs (left), and what n answers cost (right)."""
    largest, teachers = histograms.max(1), int(histograms[0].sum())
    edges = np.arange(25, teachers + 1, 25)
    settings = {"all: LNMax": None, "T = 175, σ1 = 75": (0.7, 0.3), "T = 250, σ1 = 75": (1.0, 0.3)}
    for (name, test), colour in zip(settings.items(), ("#c9d8e8", "#7fa8d0", "#1f4e8c"), strict=True):
        weights = (
            np.ones(len(largest))
            if test is None
            else np.exp(log_p_answered(largest, test[0] * teachers, test[1] * teachers))
        )
        axes[0].hist(largest, edges, weights=weights, color=colour, label=name)
        print(f"{name}: {weights.sum():.0f} of {len(largest)} expected to be answered")
    axes[0].set(xlabel="votes for the plurality, of 250", ylabel="queries answered", title="Who passes the noisy test")
    orders = default_orders()
    log_q = log_q_gnmax(histograms, SIGMA)
    cost = axes[0].twinx()
    centres, costs = [], []
    for low in edges[:-1]:
        inside = (largest >= low) & (largest < low + 25 + (low + 25 == teachers))
        if inside.any():
            curve = summed(gnmax_rdp, log_q[inside], SIGMA, orders) / inside.sum()
            centres.append(low + 12.5)
            costs.append(curve[np.argmin(np.abs(orders - 8))])
    cost.plot(centres, costs, "ko", markersize=6, markeredgecolor="white")
    cost.grid(visible=False)
    cost.set(yscale="log", ylabel="RDP of an answer at order 8, σ2 = 40 (dots)")
    mechanism = ConfidentGNMax(threshold=0.7 * teachers, sigma1=0.3 * teachers, sigma2=SIGMA)
    labels = mechanism.answer(histograms, epsilon=1e6, delta=DELTA, noise=ReplayNoise(0)).labels
    passed, truth = np.flatnonzero(labels >= 0), histograms.argmax(1)
    counts = np.unique(np.geomspace(1, len(passed), 40).astype(int))
    asked = [int(passed[count - 1]) + 1 for count in counts]
    tests = [price(RepeatedEvent(threshold_test(mechanism.sigma1), number), DELTA) for number in asked]
    both = [price(mechanism.cost(number, int(count)), DELTA) for number, count in zip(asked, counts, strict=True)]
    plain = [price(RepeatedEvent(vote_answer(SIGMA), int(count)), DELTA) for count in counts]
    laplace = [price(laplace_answers(SCALE, int(count)), DELTA) for count in counts]
    dependent = []
    for number, count in zip(asked, counts, strict=True):
        answered = np.zeros(number, bool)
        answered[passed[:count]] = True
        query = CostQuery(
            "confident",
            DELTA,
            threshold=mechanism.threshold,
            sigma1=mechanism.sigma1,
            sigma=SIGMA,
            conversion="improved",
        )
        dependent.append(account(histograms[:number], query, answered)["data_dependent"]["epsilon"])
    everything = [convert(orders, summed(gnmax_rdp, log_q[:count], SIGMA, orders), DELTA)[0] for count in counts]
    axes[1].fill_between(counts, tests, color="#1f4e8c", label="of it, tests alone")
    axes[1].fill_between(counts, tests, both, color="#c9d8e8", label="Confident, exact")
    axes[1].plot(counts, dependent, "C0--", label="Confident, by votes")
    axes[1].plot(counts, plain, "C2", label="GNMax of all queries, exact")
    axes[1].plot(counts, everything, "C2--", label="GNMax of all queries, by votes")
    axes[1].plot(counts, laplace, "C1", label="LNMax of all queries, exact")
    axes[1].set(xlabel="answers", ylabel="ε (δ = 1e-6)", title="Cost of n answers; T = 175, σ1 = 75, σ2 = 40")
    for ax in axes:
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=2)
    source, confident, given, spent = ReplayNoise(1), [], [], []
    for seed in range(DRAWS):
        labels = mechanism.answer(histograms, epsilon=1e6, delta=DELTA, noise=ReplayNoise(seed)).labels
        confident.append((labels == truth)[labels >= 0].mean())
        given.append((labels >= 0).sum())
        spent.append(price(mechanism.cost(len(labels), int(given[-1])), DELTA))
    gaussian = spread(right(histograms, truth, lambda shape: source.gaussian(shape, SIGMA)))
    laplace_right = spread(right(histograms, truth, lambda shape: source.laplace(shape, SCALE)))
    print(f"right: Confident {spread(confident)} %, GNMax {gaussian} %, LNMax {laplace_right} %")
    print(f"Confident, all queries: {spread(given, 0, 1)} answers, exact ε {spread(spent, 2, 1)}")
    print(
        f"Confident: {len(passed)} answers of {asked[-1]} queries, tests {tests[-1]:.2f}, all {both[-1]:.2f}, "
        f"data-dependent {dependent[-1]:.2f}; GNMax of as many {plain[-1]:.2f} ({everything[-1]:.2f}), "
        f"LNMax {laplace[-1]:.2f}"
    )


def canvas(columns: int = 2):
    """Return a figure and its axes: light, with readable letters, and the same bytes in every run."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"svg.hashsalt": "terrine", "svg.fonttype": "none", "font.size": 11, "axes.grid": True})
    pyplot.rcParams.update({"grid.color": "#e6e6e6", "axes.axisbelow": True, "legend.frameon": False})
    return pyplot.subplots(1, columns, figsize=(6 * columns, 4.8), layout="constrained")


def save(figure, path: Path) -> None:
    """Write a figure as SVG without the time of day."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = common_options(__doc__, root=datasets())
    parser.add_argument("--out", type=Path, default=Path("docs/papers"))
    options = parser.parse_args()
    histograms = read_histograms(options.root / VOTES, teachers_first=True, classes=10, teachers=250)
    table(histograms)
    figure, axes = canvas()
    draw_noise(axes, np.load(options.root / VOTES), histograms)
    save(figure, options.out / "scalable-pate-noise.svg")
    figure, axes = canvas()
    draw_thresholds(axes, histograms)
    save(figure, options.out / "scalable-pate-thresholds.svg")


if __name__ == "__main__":
    main()
