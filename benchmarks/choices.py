"""Measurements behind defaults and advice: sums or votes, rounds and features, temperatures, small classes.

    python -m benchmarks.choices mechanisms|rounds|whitening|unequal|sharpness|calibration|small
        [--root FOLDER] [--work FOLDER] [--repeats 3]

Features are the first 100 of those of benchmarks/sums.py, under moments released for 5 % of the budget. The number of
linear teachers is planned for the units; they vote on 6,000 synthetic images. Noise is replayed, drawn
`--repeats` times.

`mechanisms`: accuracy of votes and of both kinds of sums (all features), if a record is protected; of groups
    benchmarks/groups.py.
`rounds`: gradients by how many rounds and features, judged by a sixth of PneumoniaMNIST's records that was held out.
`whitening`: gradients by how much of the mean variance is added to the queries' covariance, with all features under the
    queries' statistics, of all records and of few, judged by a sixth that was held out.
`unequal`: moments by which power of a class's share its targets are divided by, with all features under the queries'
    statistics, of classes as they are and of classes cut so that the largest has 20 times the records of the smallest;
    judged by a sixth that was held out: accuracy, and the mean over classes of what is found of each.
`sharpness`: best factor on the scores of moments, by the likelihood of a held-out sixth, for several numbers of classes
    (drawn `--repeats` times), with all features under the queries' statistics; and the calibration error of the
    probabilities with a factor of 5 and with √(10 K).
`calibration`: how far probabilities are from what comes true, as they are; under a temperature that was fitted to a
    fifth of the released answers, held out from the student, by least squares; and under the best one for test records.
`small`: share of a class's test images that a student recognises if only that class is cut to a few records.
"""

import argparse
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

import terrine as tr
from benchmarks.cells import KEPT, common_options, datasets, heading, row, spread
from benchmarks.features import Kept, counted_votes, student_of_votes, vectors_of
from benchmarks.sums import DELTA, features
from terrine.aggregation import gradient_rounds as schedule
from terrine.aggregation.records import Records, Whitening
from terrine.aggregation.sums import Sums, mu_left
from terrine.data.partition import iid
from terrine.heads import predict
from terrine.measures import balanced_accuracy, macro_auc
from terrine.measures.classes import calibration_error
from terrine.planning import Plan, plan, signal_of_sums, teachers_with_class
from terrine.privacy.accounting.gaussian import mu_of, mu_squared
from terrine.privacy.noise import ReplayNoise
from terrine.privacy.noised_sum import ClippedMean
from terrine.students.answers import histogram_answers
from terrine.students.linear import fit

FEATURES = 100
EPSILONS = (1, 3, 8)
SUMS: dict[str, Sums] = {"moments": tr.Moments(), "gradients": tr.Gradients()}
REGULAR = (0.01, 0.1, 0.3, 1, 3)
FEW_AND_ALL = [
    ("digits", None),
    ("PneumoniaMNIST", None),
    ("MNIST", 1_500),
    ("MNIST", None),
    ("blood cells", 2_000),
    ("blood cells", None),
    ("CIFAR-10 (JPEG copy), 500 features", 5_000),
    ("CIFAR-10 (JPEG copy), 500 features", None),
    ("blood cells, ImageNet weights, all levels", 2_000),
    ("blood cells, ImageNet weights, all levels", None),
]
POWERS = {"0": 0.0, "1/4": 0.25, "1/2": 0.5}
UNEQUAL = (1, 20)
SETS = ("digits", "blood cells", "MNIST", "Fashion-MNIST", "CIFAR-10 (JPEG copy), 500 features")
TEMPERATURES = np.exp(np.linspace(np.log(0.2), np.log(8.0), 75))


def moments_at(epsilon: float) -> ClippedMean:
    return ClippedMean.for_share(0.05, float(epsilon), DELTA)


def kept_of(name: str, options: argparse.Namespace, epsilon: float, most: int = FEATURES) -> Kept:
    kept = features(name, options.root, options.work, moments_at(epsilon))
    return {part: rows[:, :most] if rows.ndim == 2 else rows for part, rows in kept.items()}


def planned_for(kept: Kept, epsilon: float) -> Plan:
    spent = mu_squared(moments_at(epsilon).event) / mu_of(epsilon, DELTA) ** 2
    asked = {"classes": classes_of(kept), "queries": len(kept["queries"]), "epsilon": epsilon, "delta": DELTA}
    return plan(len(kept["labels"]), moments=spent, **asked)


def classes_of(kept: Kept) -> int:
    return int(kept["test_labels"].max()) + 1


def by_sums(kept: Kept, kind: Sums, mu: float, seed: int) -> np.ndarray:
    """Scores of the test images [images, classes]."""
    records, test, _ = vectors_of(kept)
    return test @ kind.head(kind.release(records, mu, ReplayNoise(seed)), mu)


def left_at(epsilon: float) -> float:
    """μ of what the moments leave of a budget."""
    return mu_left(epsilon, DELTA, moments_at(epsilon).event)


def right(kept: Kept, scores: np.ndarray) -> float:
    return float((scores.argmax(axis=1) == kept["test_labels"]).mean())


def mechanisms(options: argparse.Namespace) -> None:
    heading("data", "units", "ε", "votes", *SUMS)
    draws = range(options.repeats)
    for epsilon in (1, 2, 6):
        kept, summed = kept_of("digits", options, epsilon), features("digits", options.root, options.work)
        mu, records, planned = mu_left(epsilon, DELTA), len(kept["labels"]), planned_for(kept, epsilon)
        student = student_of_votes(kept, iid(records, planned.teachers, seed=1), classes_of(kept))
        votes = [right(kept, predict(student(planned, seed), kept["test"])) for seed in draws]
        sums = [[right(kept, by_sums(summed, kind, mu, seed)) for seed in draws] for kind in SUMS.values()]
        row("digits", f"{records:,} records", epsilon, *map(spread, (votes, *sums)))


def held_out(kept: Kept, most: int | None = None) -> Kept:
    """A sixth of the records as test images, and `count` of the others as records."""
    labels = kept["labels"]
    held, own = np.split(np.random.default_rng(0).permutation(len(labels)), [len(labels) // 6])
    own, tested = own[:most], {"test": kept["train"][held], "test_labels": labels[held]}
    return kept | tested | {"train": kept["train"][own], "labels": labels[own]}


def rounds(options: argparse.Namespace) -> None:
    heading("features", "rounds", *(f"ε = {epsilon}: accuracy, % / AUC" for epsilon in EPSILONS))
    for most in (50, 100):
        for number in (20, 40, 60):
            shown = []
            for epsilon in EPSILONS:
                kind, kept = tr.Gradients(rounds=number), held_out(kept_of("PneumoniaMNIST", options, epsilon, most))
                found = [by_sums(kept, kind, left_at(epsilon), seed) for seed in range(options.repeats)]
                areas = [macro_auc(kept["test_labels"], softmax(scores, axis=1)) for scores in found]
                area = spread((area.value for area in areas if area), 3, 1.0)
                shown.append(f"{spread(right(kept, scores) for scores in found)} / {area}")
            row(most, number, *shown)


def whitening(options: argparse.Namespace) -> None:
    heading("data", "records", "ε", *(f"γ = {regular:g}" for regular in REGULAR))
    for name, most in FEW_AND_ALL:
        kept = held_out(features(name, options.root, options.work), most)
        records = len(kept["labels"])
        for epsilon in (1, 8):
            shown, mu = [], mu_left(epsilon, DELTA)
            for regular in REGULAR:
                vectors = Whitening.fit(kept["queries"], regular).vectors
                summed = Records.of(vectors(kept["train"]), kept["labels"], np.arange(records), classes_of(kept))
                test, kind = vectors(kept["test"]), SUMS["gradients"]
                heads = (kind.head(kind.release(summed, mu, ReplayNoise(seed)), mu) for seed in range(options.repeats))
                shown.append(spread(right(kept, test @ head) for head in heads))
            row(name.removesuffix(", 500 features"), f"{records:,}", epsilon, *shown)


def unequal(options: argparse.Namespace) -> None:
    heading("data", "largest class : smallest", "records", "ε", *(f"power {power}" for power in POWERS))
    for name in SETS:
        whole = features(name, options.root, options.work)
        for ratio in UNEQUAL:
            kept = held_out(cut(whole, ratio))
            for epsilon in (1, 6):
                mu, shown = mu_left(epsilon, DELTA), []
                for power in POWERS.values():
                    with patch.object(schedule, "BALANCE_POWER", power):
                        scores = [by_sums(kept, SUMS["moments"], mu, seed) for seed in range(options.repeats)]
                    labels = kept["test_labels"]
                    balanced = spread(balanced_accuracy(labels, each.argmax(axis=1)).value for each in scores)
                    shown.append(f"{spread(right(kept, each) for each in scores)} / {balanced}")
                unlike = "as they are" if ratio == 1 else f"{ratio} : 1"
                row(name.removesuffix(", 500 features"), unlike, f"{len(kept['labels']):,}", epsilon, *shown)


def sharpness(options: argparse.Namespace) -> None:
    heading("data", "classes", "√(10 K)", *(f"ε = {epsilon}: best / by 5 / by √(10 K)" for epsilon in (1, 6)))
    for name in SETS:
        whole = held_out(features(name, options.root, options.work))
        for classes in (number for number in (2, 3, 4, 6, 10) if number <= classes_of(whole)):
            sharp, shown = schedule.sharpness(classes), []
            for epsilon in (1, 6):
                mu, figures = mu_left(epsilon, DELTA), []
                for seed in range(options.repeats):
                    kept = of_classes(whole, np.random.default_rng(seed).permutation(classes_of(whole))[:classes])
                    scores = by_sums(kept, SUMS["moments"], mu, seed) / sharp
                    figures.append([_likeliest(kept, scores), *(_error(kept, scores, 1 / of) for of in (5, sharp))])
                best, *errors = np.array(figures).T
                shown.append(" / ".join((spread(best, 1, 1.0), *(spread(each, 3, 1.0) for each in errors))))
            row(name.removesuffix(", 500 features"), classes, f"{sharp:.1f}", *shown)


def of_classes(kept: Kept, classes: np.ndarray) -> Kept:
    """Records and test images of these classes, renumbered."""
    own = {part: np.isin(kept[part], classes) for part in ("labels", "test_labels")}
    labels = {part: np.searchsorted(np.sort(classes), kept[part][of]) for part, of in own.items()}
    return kept | labels | {"train": kept["train"][own["labels"]], "test": kept["test"][own["test_labels"]]}


def _likeliest(kept: Kept, scores: np.ndarray) -> float:
    """Factor of the scores that maximises the likelihood of the test labels."""
    labels = kept["test_labels"]

    def unlikely(logarithm: float) -> float:
        return -float(log_softmax(scores * np.exp(logarithm), axis=1)[np.arange(len(labels)), labels].mean())

    return float(np.exp(minimize_scalar(unlikely, bounds=(np.log(0.5), np.log(100)), method="bounded").x))


def cut(kept: Kept, ratio: float) -> Kept:
    """Cut classes to sizes that fall evenly, as logarithms, from the first of a random order to the last."""
    generator, labels = np.random.default_rng(0), kept["labels"]
    if ratio == 1:
        return kept
    classes = generator.permutation(classes_of(kept))
    shares = ratio ** -np.linspace(0, 1, len(classes))
    largest = (np.bincount(labels)[classes] / shares).min()
    parts = [
        generator.permutation(np.flatnonzero(labels == label))[: int(largest * share)]
        for label, share in zip(classes, shares, strict=True)
    ]
    own = np.concatenate(parts)
    return {**kept, "train": kept["train"][own], "labels": labels[own]}


def calibration(options: argparse.Namespace) -> None:
    heading("data", "student", "ε", "as it is", "with the fitted temperature", "fitted", "with the best", "best")
    for name in ("PneumoniaMNIST", "digits"):
        for epsilon in EPSILONS:
            kept = kept_of(name, options, epsilon)
            planned = planned_for(kept, epsilon)
            counts = counted_votes(kept, iid(len(kept["labels"]), planned.teachers, seed=1), classes_of(kept))
            methods = {"votes": partial(_by_votes, kept, counts, planned)} | {
                mechanism: partial(_by_sums, kept, kind, left_at(epsilon)) for mechanism, kind in SUMS.items()
            }
            for method, made in methods.items():
                figures = []
                for scores, fitted in map(made, range(options.repeats)):
                    errors = [_error(kept, scores, temperature) for temperature in TEMPERATURES]
                    under = _error(kept, scores, fitted) if fitted else np.nan
                    figures.append([_error(kept, scores), under, fitted, min(errors), TEMPERATURES[np.argmin(errors)]])
                means = np.array(figures, np.float64).mean(axis=0)
                shown = [f"{mean:.{digits}f}" for mean, digits in zip(means, (3, 3, 2, 3, 1), strict=True)]
                row(name, method, epsilon, *("–" if text == "nan" else text for text in shown))


def _by_sums(kept: Kept, kind: Sums, mu: float, seed: int) -> tuple[np.ndarray, None]:
    return by_sums(kept, kind, mu, seed), None


def _by_votes(kept: Kept, counts: np.ndarray, planned: Plan, seed: int) -> tuple[np.ndarray, float]:
    """Scores of the test images, and the temperature that fits held-out answers best."""
    noisy = counts + ReplayNoise(seed).gaussian(counts.shape, planned.sigma)
    held, own = np.split(np.random.default_rng(seed).permutation(len(counts)), [len(counts) // 5])
    teachers = int(counts[0].sum())
    head = fit(kept["queries"][own], histogram_answers(noisy[own], teachers, planned.sigma), seed=0)
    scores, shares = np.log(predict(head, kept["queries"][held]) + 1e-30), noisy[held] / teachers

    def apart(logarithm: float) -> float:
        return float(((softmax(scores / np.exp(logarithm), axis=1) - shares) ** 2).sum())

    fitted = minimize_scalar(apart, bounds=(np.log(0.05), np.log(20)), method="bounded").x
    return np.log(predict(head, kept["test"]) + 1e-30), float(np.exp(fitted))


def _error(kept: Kept, scores: np.ndarray, temperature: float = 1.0) -> float:
    return calibration_error(kept["test_labels"], softmax(scores / temperature, axis=1))


def small(options: argparse.Namespace) -> None:
    columns = ("signal of its sums", "found by gradients, %", "signal of its votes", "found by votes, %")
    heading("data", "class", "records", *columns)
    for name, epsilon in (("blood cells", 2), ("digits", 8)):
        whole, mu = kept_of(name, options, epsilon), left_at(epsilon)
        for place, called in ((0, "first"), (3, "fourth")):
            own = np.random.default_rng(0).permutation(np.flatnonzero(whole["labels"] == place))
            for records in (5, 15, 40, 100, 300):
                if records >= len(own):
                    continue
                rest = np.setdiff1d(np.arange(len(whole["labels"])), own[records:])
                kept = whole | {"train": whole["train"][rest], "labels": whole["labels"][rest]}
                planned = planned_for(kept, epsilon)
                student = student_of_votes(kept, iid(len(rest), planned.teachers, seed=1), classes_of(kept))
                asked, draws = kept["test_labels"] == place, range(options.repeats)
                sums = [by_sums(kept, SUMS["gradients"], mu, seed)[asked] for seed in draws]
                votes = [predict(student(planned, seed), kept["test"][asked]) for seed in draws]
                found = [100 * np.mean([(of.argmax(axis=1) == place).mean() for of in each]) for each in (sums, votes)]
                of_sums = signal_of_sums(records, mu, classes=1, features=FEATURES)
                of_votes = planned.signal * teachers_with_class(planned.teachers, records) / planned.teachers
                texts = (f"{of_sums:.2f}", f"{found[0]:.0f}", f"{of_votes:.1f}", f"{found[1]:.0f}")
                row(f"{name}, ε = {epsilon}", called, records, *texts)


TABLES: dict[str, Callable[[argparse.Namespace], None]] = {
    "mechanisms": mechanisms,
    "rounds": rounds,
    "whitening": whitening,
    "unequal": unequal,
    "sharpness": sharpness,
    "calibration": calibration,
    "small": small,
}


def main() -> None:
    parser = common_options(__doc__, root=datasets(), work=KEPT / "sums", repeats=3)
    parser.add_argument("table", choices=list(TABLES))
    options = parser.parse_args()
    TABLES[options.table](options)


if __name__ == "__main__":
    main()
