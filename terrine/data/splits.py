"""Train and test: stratified by class, or blind to it, and no person in both.

>>> import numpy as np
>>> train, test = stratified(np.arange(100) % 2, test_fraction=0.2, seed=0)
>>> len(train), len(test)
(80, 20)
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from terrine.errors import InputError, SettingError
from terrine.randomness import numpy_generator


def split_records(
    labels: np.ndarray,
    test_fraction: float,
    *,
    groups: np.ndarray | None = None,
    names: Sequence[str] | None = None,
    label_blind: bool = False,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (train, test) as `stratified` does, or, `label_blind`, as `by_place` does with `names`.

    Raises SettingError for a fraction outside (0, 1) and InputError when no such split exists.
    """
    if label_blind:
        return by_place(len(labels), test_fraction, groups=groups, names=names, seed=seed)
    return stratified(labels, test_fraction, groups=groups, seed=seed)


def stratified(
    labels: np.ndarray, test_fraction: float, *, groups: np.ndarray | None = None, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (train, test): sorted int64 indices that share no record, cover all, and share no group.

    `labels` is int64 [N] with values 0..K-1, `groups` int64 [N] or None. About `test_fraction` of every class goes to
    the test split, exactly (rounded) when there are no groups; every class keeps a training record. Deterministic in
    `seed`. Without groups one record more or less moves few others between the splits: every record draws its own
    position in the queue of its class.

    Raises SettingError for a fraction outside (0, 1) and InputError when no such split exists.
    """
    _check(test_fraction, groups, len(labels))
    if groups is None:
        in_test = _by_record(labels, test_fraction, seed)
    else:
        in_test = _by_group(labels, test_fraction, groups, seed)
    if not in_test.any():
        raise InputError(
            f"A test split of {test_fraction} of {len(labels)} records is empty when every class keeps a training "
            "record and no group is divided. Raise data.test_fraction or bring more records (or more groups)."
        )
    return np.flatnonzero(~in_test), np.flatnonzero(in_test)


def by_place(
    count: int,
    test_fraction: float,
    *,
    groups: np.ndarray | None = None,
    names: Sequence[str] | None = None,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (train, test) as `stratified` does, but blind to labels: every record, or group, draws by itself.

    For data of which a part is to be public: who is in which part then says nothing about anybody's label, and another
    record, or one more at the end, moves nobody. A record draws by its place, or by its name where its place says its
    class, as in class folders; a group by the order in which groups first occur. About `test_fraction` of all go to the
    test split, in the order of what they drew, which says nothing either; a rare class may be missing in one.
    """
    _check(test_fraction, groups, count)
    if names is not None:
        digests = (hashlib.sha256(f"data.split.names {seed} {name}".encode()).digest() for name in names)
        draws = np.array([int.from_bytes(digest[:8], "big") / 2**64 for digest in digests])
    else:
        draws = numpy_generator(seed, "data.split.places").random(count)
    if groups is not None:
        _, first, group = np.unique(groups, return_index=True, return_inverse=True)
        draws = draws[np.argsort(np.argsort(first))][group]
    in_test = draws < test_fraction
    if in_test.all() or not in_test.any():
        raise InputError(f"{count} records are too few to draw a test split of {test_fraction} from. Bring more.")
    test = np.flatnonzero(in_test)
    return np.flatnonzero(~in_test), test[np.argsort(draws[test], kind="stable")]


def _check(test_fraction: float, groups: np.ndarray | None, count: int) -> None:
    if not 0 < test_fraction < 1:
        raise SettingError(f"data.test_fraction is {test_fraction}. It must lie between 0 and 1, for example 0.2.")
    if groups is not None and len(groups) != count:
        raise InputError(f"groups has {len(groups)} entries, labels has {count}. Give one group per record.")


def _by_record(labels: np.ndarray, test_fraction: float, seed: int) -> np.ndarray:
    position = numpy_generator(seed, "data.split").random(len(labels))
    in_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        wanted = round(test_fraction * len(members))
        # A class of two or more records is in both splits; a class of one stays where teachers can learn it.
        wanted = min(max(wanted, 1), len(members) - 1)
        in_test[members[np.argsort(position[members])[:wanted]]] = True
    return in_test


def _by_group(labels: np.ndarray, test_fraction: float, groups: np.ndarray, seed: int) -> np.ndarray:
    """Visit groups in random order; move one to test when that brings the class counts of test nearer to the goal.

    Random order, not largest first: else the test split would hold the persons with most records.
    """
    _, group = np.unique(groups, return_inverse=True)
    count, classes = int(group.max(initial=-1)) + 1, int(labels.max(initial=-1)) + 1
    histograms = np.bincount(group * classes + labels, minlength=count * classes).reshape(count, classes)
    left = histograms.sum(axis=0)
    missing = test_fraction * left
    chosen = np.zeros(count, dtype=bool)
    order = numpy_generator(seed, "data.split.groups").permutation(count)
    for index in order:
        nearer = np.square(missing - histograms[index]).sum() < np.square(missing).sum()
        if nearer and _train_keeps_every_class(left, histograms[index]):
            chosen[index] = True
            left = left - histograms[index]
            missing = missing - histograms[index]
    if not chosen.any():  # every group overshoots: take the one that overshoots least
        possible = [index for index in order if _train_keeps_every_class(left, histograms[index])]
        if possible:
            chosen[min(possible, key=lambda index: np.square(missing - histograms[index]).sum())] = True
    return chosen[group]


def _train_keeps_every_class(left: np.ndarray, histogram: np.ndarray) -> bool:
    return bool((left > histogram)[histogram > 0].all())
