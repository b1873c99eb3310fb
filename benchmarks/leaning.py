"""Why votes seem to lose accuracy with ε on X-rays: draws of the noise, and teachers who lean to the larger class.

    python benchmarks/leaning.py [--root FOLDER] [--work FOLDER] [--repeats 10]

PneumoniaMNIST, as votes of benchmarks/rivals.py have it: 200 features under moments released for 5 % of ε = 1, 6,000
synthetic queries, a linear student, replayed noise drawn `--repeats` times. A sixth of the training records is held
out. For each ensemble, dealt evenly or by Dirichlet(0.1), and ε (δ = 1e-5): accuracy on the test split, of which 62.5 %
have pneumonia, how many it calls so, and the AUC; and accuracy on what was held out, of which 76 % have pneumonia.
Features are kept in `--work`.
"""

import numpy as np
from cells import KEPT, common_options, datasets, heading, row, spread
from sums import DELTA, EPSILONS, features

from tasks.tools.board import student_of_votes
from terrine.classifiers import predict
from terrine.data.partition import dirichlet, iid
from terrine.measures import macro_auc
from terrine.planning import plan
from terrine.privacy.clipped_mean import ClippedMean

HELD_OUT, MOST_FEATURES = 872, 200
ENSEMBLES = [("evenly", 100), ("evenly", 480), ("evenly", 1000), ("Dirichlet(0.1)", 1000)]


def main() -> None:
    options = common_options(__doc__, root=datasets(), work=KEPT / "sums", repeats=10).parse_args()
    kept = features("PneumoniaMNIST", options.root, options.work, ClippedMean.for_share(0.05, 1, DELTA))
    order = np.random.default_rng(0).permutation(len(kept["labels"]))
    held, own = order[:HELD_OUT], order[HELD_OUT:]
    learnt = kept | {"train": kept["train"][own], "labels": kept["labels"][own]}
    sets = [
        (kept["test"][:, :MOST_FEATURES], kept["test_labels"]),
        (kept["train"][held, :MOST_FEATURES], kept["labels"][held]),
    ]
    heading("teachers", "dealt", "ε", "accuracy, %", "called pneumonia, %", "AUC", "accuracy on held-out records, %")
    for dealt, teachers in ENSEMBLES:
        labels = learnt["labels"]
        parts = iid(len(own), teachers, seed=1) if dealt == "evenly" else dirichlet(labels, teachers, 0.1, seed=0)
        student = student_of_votes(learnt, parts, 2, MOST_FEATURES)
        for epsilon in EPSILONS:
            planned = plan(len(own), classes=2, epsilon=epsilon, delta=DELTA, teachers=teachers)
            figures = []
            for seed in range(options.repeats):
                (test, truth), (rest, known) = sets
                head = student(planned, seed)
                likely, other = predict(head, test), predict(head, rest)
                auc = macro_auc(truth, likely)
                assert auc is not None
                said = likely.argmax(axis=1)
                figures.append([(said == truth).mean(), said.mean(), auc.value, (other.argmax(axis=1) == known).mean()])
            right, called, auc_, right_held = np.array(figures).T
            row(teachers, dealt, epsilon, spread(right), spread(called), spread(auc_, 3, 1.0), spread(right_held))


if __name__ == "__main__":
    main()
