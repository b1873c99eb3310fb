import numpy as np
import pytest

from terrine.errors import InputError
from terrine.heads import FindingsHead, LinearHead, head_from_arrays, head_from_module, initial_head, predict

GENERATOR = np.random.default_rng(0)
LINEAR = LinearHead(*(GENERATOR.normal(size=shape).astype(np.float32) for shape in ((3, 4), (3,))))


def test_a_head_survives_the_way_through_arrays_and_through_a_module():
    head = LINEAR
    for again in (head_from_arrays(head.to_arrays()), head_from_module(head.module())):
        assert type(again) is type(head)
        assert again.to_arrays().keys() == head.to_arrays().keys()
        for name, array in head.to_arrays().items():
            assert np.array_equal(again.to_arrays()[name], array)
    assert (head.features, head.classes) == (4, 3)


def test_a_module_has_weights_of_its_own():
    module = LINEAR.module()
    module.weight.data.zero_()
    assert LINEAR.weight.any()


def test_probabilities_are_the_scores_written_as_loops(monkeypatch):
    head = LINEAR
    monkeypatch.setattr("terrine.heads._PREDICTION_BLOCK", 5)
    features = GENERATOR.normal(size=(13, 4)).astype(np.float32)
    expected = []
    for row in features.astype(float):
        scores = [weight @ row + bias for weight, bias in zip(head.weight, head.bias, strict=True)]
        expected.append(np.exp(scores) / np.exp(scores).sum())
    np.testing.assert_allclose(predict(head, features), expected, atol=1e-6)
    assert predict(head, features[:0]).shape == (0, 3)
    with pytest.raises(InputError, match="but the head needs 4 features"):
        predict(head, features[:, :3])


def test_arrays_of_another_head_are_refused():
    arrays = FindingsHead(LINEAR.weight, LINEAR.bias).to_arrays()
    with pytest.raises(InputError, match=r"findings\.weight, findings\.bias"):
        head_from_arrays({"findings.weight": arrays["findings.weight"]})
    with pytest.raises(InputError, match=r"\(3,\)"):
        head_from_arrays(arrays | {"findings.weight": np.zeros((2, 5))})
    with pytest.raises(InputError, match="Unknown array 'scale'"):
        head_from_arrays(LINEAR.to_arrays() | {"scale": np.zeros(1)})


def test_the_initial_head_depends_on_the_seed_alone_and_is_small():
    one, same, other = (initial_head(100, 10, seed) for seed in (0, 0, 1))
    assert np.array_equal(one.weight, same.weight)
    assert not np.array_equal(one.weight, other.weight)
    assert 0.09 < np.abs(one.weight).max() <= 0.1
    assert not one.bias.any()


def test_arrays_that_are_no_head_are_refused():
    with pytest.raises(InputError, match=r"\(3,\) and \(3,\)"):
        LinearHead(np.zeros(3), np.zeros(3))
    with pytest.raises(InputError, match="weight, bias"):
        LinearHead.from_arrays({"weight": np.zeros((2, 3))})
