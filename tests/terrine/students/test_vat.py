"""Virtual adversarial training against loops with numerical derivatives, and against the Hessian's eigenvector."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

from terrine.students.vat import adversarial_direction, divergence, spread, vat_loss

WEIGHT = np.random.default_rng(0).normal(size=(3, 5))
INPUTS = np.random.default_rng(1).normal(size=(6, 5))
START = np.random.default_rng(2).normal(size=(6, 5))


def scores(inputs):
    return torch.tanh(inputs) @ torch.tensor(WEIGHT).T


def plain_scores(x):
    return WEIGHT @ np.tanh(x)


def plain_divergence(first, second):
    total = 0.0
    for label in range(3):
        total += softmax(first)[label] * (log_softmax(first)[label] - log_softmax(second)[label])
    return total


def plain_direction(x, start, probe, iterations):
    """Power iteration of one input, its gradient by central differences."""
    d = start / np.linalg.norm(start)
    for _ in range(iterations):
        gradient = np.zeros(5)
        for axis in range(5):
            step = np.zeros(5)
            step[axis] = 1e-5
            up, down = (
                plain_divergence(plain_scores(x), plain_scores(x + probe * (d + sign * step))) for sign in (1, -1)
            )
            gradient[axis] = (up - down) / 2e-5
        d = gradient / np.linalg.norm(gradient)
    return d


@pytest.mark.parametrize("iterations", [1, 2])
def test_the_loss_is_algorithm_1_written_as_a_loop(iterations):
    epsilon, probe = 0.7, 0.1
    loss = vat_loss(
        scores, torch.tensor(INPUTS), torch.tensor(START), epsilon=epsilon, probe=probe, iterations=iterations
    )
    expected = 0.0
    for x, start in zip(INPUTS, START, strict=True):
        d = plain_direction(x, start, probe, iterations)
        expected += plain_divergence(plain_scores(x), plain_scores(x + epsilon * d))
    assert float(loss) == pytest.approx(expected / len(INPUTS), rel=1e-4)


def test_power_iteration_finds_the_direction_of_largest_curvature():
    inputs = torch.tensor(INPUTS)
    clean = scores(inputs)
    direction = adversarial_direction(scores, inputs, torch.tensor(START), probe=1e-3, iterations=60, clean=clean)
    for x, d in zip(INPUTS, direction.numpy(), strict=True):
        p = softmax(plain_scores(x))
        jacobian = WEIGHT * (1 - np.tanh(x) ** 2)
        hessian = jacobian.T @ (np.diag(p) - np.outer(p, p)) @ jacobian
        vectors = np.linalg.eigh(hessian)[1]
        assert abs(vectors[:, -1] @ d) > 0.99


def test_the_direction_changes_answers_more_than_a_random_one():
    inputs = torch.tensor(INPUTS)
    adversarial = vat_loss(scores, inputs, torch.tensor(START), epsilon=0.5, probe=0.01, iterations=1)
    unit = torch.tensor(START / np.linalg.norm(START, axis=1, keepdims=True))
    assert float(adversarial) > 1.5 * float(divergence(scores(inputs), scores(inputs + 0.5 * unit)).mean())


def test_no_weight_gets_a_gradient_from_the_search_and_none_flows_into_the_clean_answers():
    weight = torch.tensor(WEIGHT, requires_grad=True)

    def own(inputs):
        return inputs @ weight.T

    inputs = torch.tensor(INPUTS)
    direction = adversarial_direction(
        own, inputs, torch.tensor(START), probe=0.1, iterations=2, clean=own(inputs).detach()
    )
    assert weight.grad is None
    vat_loss(own, inputs, torch.tensor(START), epsilon=0.5, probe=0.1, iterations=2).backward()
    given = weight.grad.clone()
    weight.grad = None
    divergence(own(inputs).detach(), own(inputs + 0.5 * direction)).mean().backward()
    torch.testing.assert_close(given, weight.grad)


def test_images_are_perturbed_as_whole_vectors():
    images = torch.tensor(INPUTS[:4, :4].reshape(4, 1, 2, 2))
    direction = adversarial_direction(
        lambda batch: batch.flatten(1) @ torch.tensor(WEIGHT[:, :4]).T,
        images,
        torch.ones(4, 1, 2, 2, dtype=torch.float64),
        probe=0.1,
        iterations=1,
        clean=images.flatten(1) @ torch.tensor(WEIGHT[:, :4]).T,
    )
    assert direction.shape == images.shape
    np.testing.assert_allclose(direction.flatten(1).norm(dim=1), 1)
    expected = np.sqrt(np.mean([((x - INPUTS.mean(0)) ** 2).sum() for x in INPUTS]))
    assert spread(torch.tensor(INPUTS)) == pytest.approx(expected)
