"""Teachers who lean to the larger class: accuracy by draws of the noise, and by how much of the lean is taken back.

    python -m benchmarks.leaning [--root FOLDER] [--work FOLDER] [--repeats 10] [--data MNIST …] [--priors 1 0.5]

PneumoniaMNIST, blood cells and MNIST, as votes of benchmarks/rivals.py have them: 200 features (100 of blood cells)
under moments released for 5 % of ε = 1, 6,000 synthetic queries, a linear student, replayed noise drawn `--repeats`
times. A sixth of the training records is held out. For each ensemble, dealt evenly or by Dirichlet(0.1), ε (δ = 1e-5)
and `teachers.prior`: accuracy on the test split, how many it gives the largest class of the training records, and the
AUC; and accuracy and balanced accuracy on what was held out, by which a setting is chosen. Features are kept in
`--work`.
"""

import numpy as np

from benchmarks.cells import KEPT, common_options, datasets, heading, row, spread
from benchmarks.features import TEACHERS, student_of_votes
from benchmarks.sums import DELTA, EPSILONS, features
from terrine.data.partition import dirichlet, iid
from terrine.heads import predict
from terrine.measures import balanced_accuracy, macro_auc
from terrine.planning import plan
from terrine.privacy.noised_sum import ClippedMean

MOST_FEATURES = 200
ENSEMBLES = {
    "PneumoniaMNIST": [("evenly", 100), ("evenly", 480), ("evenly", 1000), ("Dirichlet(0.1)", 1000)],
    "blood cells": [("evenly", 200), ("evenly", 400), ("Dirichlet(0.1)", 200)],
    "MNIST": [("evenly", 600), ("Dirichlet(0.1)", 1000)],
}


def main() -> None:
    parser = common_options(__doc__, root=datasets(), work=KEPT / "sums", repeats=10)
    parser.add_argument("--data", choices=list(ENSEMBLES), nargs="+", default=list(ENSEMBLES))
    parser.add_argument("--priors", type=float, nargs="+", default=[1.0, 0.5])
    options = parser.parse_args()
    columns = ["accuracy, %", "called by the largest class, %", "AUC", "held out: accuracy, %", "balanced, %"]
    heading("data", "teachers", "dealt", "ε", "prior", *columns)
    for name in options.data:
        kept = features(name, options.root, options.work, ClippedMean.for_share(0.05, 1, DELTA))
        order = np.random.default_rng(0).permutation(len(kept["labels"]))
        held, own = np.split(order, [len(order) // 6])
        learnt = kept | {"train": kept["train"][own], "labels": kept["labels"][own]}
        labels, test, rest = learnt["labels"], kept["test"][:, :MOST_FEATURES], kept["train"][held, :MOST_FEATURES]
        classes, largest = int(labels.max()) + 1, int(np.bincount(labels).argmax())
        for dealt, teachers in ENSEMBLES[name]:
            parts = iid(len(own), teachers, seed=1) if dealt == "evenly" else dirichlet(labels, teachers, 0.1, seed=0)
            for prior in options.priors:
                settings = TEACHERS.model_copy(update={"prior": prior})
                student = student_of_votes(learnt, parts, classes, MOST_FEATURES, settings)
                for epsilon in EPSILONS:
                    planned = plan(len(own), classes=classes, epsilon=epsilon, delta=DELTA, teachers=teachers)
                    figures = []
                    for seed in range(options.repeats):
                        head = student(planned, seed)
                        likely, found = predict(head, test), predict(head, rest).argmax(axis=1)
                        auc, said = macro_auc(kept["test_labels"], likely), likely.argmax(axis=1)
                        assert auc is not None
                        figures.append(
                            (
                                (said == kept["test_labels"]).mean(),
                                (said == largest).mean(),
                                auc.value,
                                (found == kept["labels"][held]).mean(),
                                balanced_accuracy(kept["labels"][held], found).value,
                            )
                        )
                    right, called, auc_, *chosen_by = np.array(figures).T
                    shown = [spread(right), spread(called), spread(auc_, 3, 1.0), *map(spread, chosen_by)]
                    row(name, teachers, dealt, epsilon, prior, *shown)


if __name__ == "__main__":
    main()
