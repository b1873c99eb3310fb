"""The forest student: scikit-learn's trees, as arrays that torch answers with."""

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestRegressor

from tasks.config.params import validate
from terrine.errors import InputError, SettingError
from terrine.heads import ForestHead, head_from_arrays, predict
from terrine.students import forest
from terrine.students.answers import histogram_answers, label_answers

NUMBERS = np.random.default_rng(0)
FEATURES = NUMBERS.normal(size=(400, 6)).astype(np.float32)
CORNER = ((FEATURES[:, 0] > 0) & (FEATURES[:, 1] > 0)).astype(np.int64)


def test_a_stored_forest_answers_like_scikit_learns(monkeypatch) -> None:
    kept = []

    class Kept(RandomForestRegressor):
        def fit(self, *arguments):
            kept.append(super().fit(*arguments))
            return kept[-1]

    monkeypatch.setattr("sklearn.ensemble.RandomForestRegressor", Kept)
    answers = label_answers(CORNER, 2)
    head = forest.fit(FEATURES, answers, trees=7, least=3, seed=1)
    stored = head_from_arrays({name: array.copy() for name, array in head.to_arrays().items()})
    assert isinstance(stored, ForestHead)
    assert head.depth == max(tree.get_depth() for tree in kept[0].estimators_)
    # Features that lie on a threshold, too.
    thresholds = kept[0].estimators_[0].tree_.threshold.astype(np.float32)
    rows = np.concatenate([FEATURES, np.repeat(thresholds[:, None], 6, axis=1)])
    shares = np.clip(kept[0].predict(rows), 1e-4, None)
    np.testing.assert_allclose(predict(stored, rows), shares / shares.sum(1, keepdims=True), atol=1e-6)


def test_equal_seeds_grow_equal_forests_and_noise_asks_for_larger_leaves() -> None:
    def grown(noise: float, seed: int = 3) -> ForestHead:
        counts = np.eye(2)[CORNER] * 50 + np.random.default_rng(1).normal(size=(400, 2)) * noise
        return forest.fit(FEATURES, histogram_answers(counts, 50, noise), trees=5, least=None, seed=seed)

    little, much = grown(5), grown(60)
    for name, array in grown(5).to_arrays().items():
        np.testing.assert_array_equal(array, little.to_arrays()[name])
    assert len(much.shares) < len(little.shares)
    assert (predict(little, FEATURES).argmax(1) == CORNER).mean() > 0.95
    assert len(grown(5, seed=4).shares) != len(little.shares)


def test_arrays_that_are_no_forest_are_refused() -> None:
    arrays = forest.fit(FEATURES, label_answers(CORNER, 2), trees=2, least=50, seed=1).to_arrays()
    for name, value in (("forest.left", -1), ("forest.feature", 6), ("forest.right", 0), ("forest.root", 999)):
        broken = {key: array.copy() for key, array in arrays.items()}
        broken[name][0] = value
        with pytest.raises(InputError, match="are not a forest"):
            head_from_arrays(broken)
    with pytest.raises(InputError, match=r"needs the array forest\.left"):
        head_from_arrays({name: array for name, array in arrays.items() if name != "forest.left"})


def test_a_forest_is_exported_for_batches_of_any_size() -> None:
    module = forest.fit(FEATURES, label_answers(CORNER, 2), trees=2, least=20, seed=1).module()
    program = torch.export.export(
        module, (torch.zeros(3, 6),), dynamic_shapes={"features": {0: torch.export.Dim("batch")}}
    )
    rows = torch.from_numpy(FEATURES[:17])
    torch.testing.assert_close(program.module()(rows), module(rows))


def test_what_only_other_students_have_is_refused() -> None:
    run = {"data": {"public_benchmark": True}, "aggregation": {"mechanism": "histogram", "sigma": 5}}
    with pytest.raises(SettingError, match=r"student\.l2=0\.3 has no meaning for student\.kind=forest"):
        validate(run | {"student": {"kind": "forest", "l2": 0.3}})
