import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from terrine.determinism.randomness import numpy_generator
from terrine.errors import InputError, SettingError
from terrine.heads import initial_head, predict
from terrine.students.answers import histogram_answers, label_answers
from terrine.students.linear import L2, PRECISIONS, fit

CLASSES, FEATURES, TEACHERS, SIGMA = 3, 6, 100, 8.0
GIVEN = 0.2
CHOSEN = None


@pytest.fixture(scope="module")
def release():
    """Features of 400 queries, and noisy histograms and labels from a linear truth."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(400, FEATURES)).astype(np.float32)
    truth = generator.normal(size=(CLASSES, FEATURES)) * 1.5
    shares = softmax(features @ truth.T, axis=1)
    votes = np.stack([generator.multinomial(TEACHERS, share) for share in shares])
    noisy = votes + SIGMA * generator.normal(size=votes.shape)
    return features, noisy, noisy.argmax(1), truth


def plain_minimum(features, loss_of_scores):
    """The minimum of loss + prior found by BFGS with numerical gradients in double precision."""
    features = features.astype(np.float64)
    scale = np.mean([row @ row for row in features])

    def objective(flat):
        weight, bias = flat[:-CLASSES].reshape(CLASSES, FEATURES), flat[-CLASSES:]
        total = 0.0
        for number, row in enumerate(features):
            total += loss_of_scores(weight @ row + bias, number)
        return (total + 0.5 * GIVEN * scale * (weight**2).sum()) / len(features)

    flat = minimize(objective, np.zeros(CLASSES * (FEATURES + 1)), method="L-BFGS-B", options={"gtol": 1e-6}).x
    return flat[:-CLASSES].reshape(CLASSES, FEATURES), flat[-CLASSES:]


def test_histogram_fit_minimises_the_gaussian_likelihood_written_as_a_plain_loop(release):
    features, noisy, _, _ = release
    features, noisy = features[:30], noisy[:30]
    weight, bias = plain_minimum(
        features, lambda scores, q: ((noisy[q] / TEACHERS - softmax(scores)) ** 2).sum() / (2 * (SIGMA / TEACHERS) ** 2)
    )
    head = fit(features, histogram_answers(noisy, TEACHERS, SIGMA), GIVEN, seed=0)
    np.testing.assert_allclose(head.weight, weight, atol=2e-3)
    np.testing.assert_allclose(head.bias - head.bias.mean(), bias - bias.mean(), atol=2e-3)


def test_label_fit_minimises_cross_entropy_written_as_a_plain_loop(release):
    features, _, labels, _ = release
    features, labels = features[:30], labels[:30]
    targets = np.eye(CLASSES)[labels]
    weight, bias = plain_minimum(features, lambda scores, q: -(targets[q] * log_softmax(scores)).sum())
    head = fit(features, label_answers(labels, CLASSES), GIVEN, seed=0)
    np.testing.assert_allclose(head.weight, weight, atol=2e-3)
    np.testing.assert_allclose(head.bias - head.bias.mean(), bias - bias.mean(), atol=2e-3)


def test_histograms_teach_more_than_their_argmax(release):
    features, noisy, labels, truth = release
    fresh = np.random.default_rng(1).normal(size=(4000, FEATURES)).astype(np.float32)
    right = softmax(fresh @ truth.T, axis=1)
    from_histograms = predict(fit(features, histogram_answers(noisy, TEACHERS, SIGMA), seed=0), fresh)
    from_labels = predict(fit(features, label_answers(labels, CLASSES), seed=0), fresh)
    assert (from_histograms.argmax(1) == right.argmax(1)).mean() > 0.95
    assert np.abs(from_histograms - right).mean() < 0.5 * np.abs(from_labels - right).mean()


def test_a_query_counts_by_how_little_noise_it_has(release):
    features, noisy, _, _ = release
    weak = fit(features, histogram_answers(noisy, TEACHERS, SIGMA * 100), GIVEN, seed=0)
    strong = fit(features, histogram_answers(noisy, TEACHERS, SIGMA), GIVEN, seed=0)
    assert np.linalg.norm(weak.weight) < 0.2 * np.linalg.norm(strong.weight)


def test_the_prior_does_not_depend_on_the_scale_of_the_features(release):
    features, noisy, _, _ = release
    one = fit(features, histogram_answers(noisy, TEACHERS, SIGMA), GIVEN, seed=0)
    scaled = fit(features * 8, histogram_answers(noisy, TEACHERS, SIGMA), GIVEN, seed=0)
    np.testing.assert_allclose(predict(scaled, features * 8), predict(one, features), atol=1e-3)


@pytest.mark.parametrize("sigma", [4.0, 60.0])
def test_the_prior_is_the_one_under_which_held_out_answers_are_likeliest(release, sigma):
    features, _, _, truth = release
    generator = np.random.default_rng(2)
    shares = softmax(features @ truth.T, axis=1)
    noisy = TEACHERS * shares + sigma * generator.normal(size=shares.shape)
    order = numpy_generator(0, "student held out").permutation(400)
    rest, kept = order[:100], order[100:]
    losses = []
    for l2 in PRECISIONS:
        head = fit(features[kept], histogram_answers(noisy[kept], TEACHERS, sigma), l2, seed=0)
        losses.append(((noisy[rest] / TEACHERS - predict(head, features[rest])) ** 2).sum())
    rises = [number for number in range(1, len(losses)) if losses[number] >= losses[number - 1]]
    best = PRECISIONS[rises[0] - 1] if rises else PRECISIONS[-1]
    expected = fit(features, histogram_answers(noisy, TEACHERS, sigma), best, seed=0)
    head = fit(features, histogram_answers(noisy, TEACHERS, sigma), CHOSEN, seed=0)
    assert np.array_equal(head.weight, expected.weight)


def test_fits_and_predictions_are_the_same_bytes_on_one_thread_and_on_two(release):
    features, noisy, _, _ = release
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            head = fit(features, histogram_answers(noisy, TEACHERS, SIGMA), CHOSEN, seed=0)
            results.append(head.weight.tobytes() + head.bias.tobytes() + predict(head, features).tobytes())
    finally:
        torch.set_num_threads(before)
    assert results[0] == results[1]


def test_few_answers_are_all_used_for_fitting(release):
    features, noisy, _, _ = release
    chosen, default = (
        fit(features[:8], histogram_answers(noisy[:8], TEACHERS, SIGMA), l2, seed=0) for l2 in (CHOSEN, L2)
    )
    assert np.array_equal(chosen.weight, default.weight)


def test_predictions_are_probabilities_of_the_scores(release, monkeypatch):
    monkeypatch.setattr("terrine.heads._PREDICTION_BLOCK", 37)
    features = release[0]
    head = initial_head(FEATURES, CLASSES, seed=0)
    expected = [softmax(head.weight.astype(float) @ row + head.bias) for row in features]
    np.testing.assert_allclose(predict(head, features), expected, atol=1e-6)
    assert predict(head, features[:0]).shape == (0, CLASSES)


def test_answers_that_cannot_be_used_are_refused(release):
    features, noisy, labels, _ = release
    with pytest.raises(InputError, match="do not fit together"):
        fit(features[:-1], histogram_answers(noisy, TEACHERS, SIGMA), seed=0)
    with pytest.raises(InputError, match="at least one"):
        fit(features[:0], histogram_answers(noisy[:0], TEACHERS, SIGMA), seed=0)
    with pytest.raises(InputError, match="finite"):
        fit(features, histogram_answers(np.full_like(noisy, np.nan), TEACHERS, SIGMA), seed=0)
    with pytest.raises(InputError, match="from 0 to 1"):
        fit(features, label_answers(labels, 2), seed=0)
    with pytest.raises(InputError, match="but the head needs"):
        predict(initial_head(FEATURES + 1, CLASSES, seed=0), features)
    with pytest.raises(SettingError, match="must be positive"):
        fit(features, histogram_answers(noisy, TEACHERS, 0.0), seed=0)
