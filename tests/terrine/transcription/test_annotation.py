"""Data-sensitive annotation: norms, sums, sensitivity and noise."""

import itertools
import math

import numpy as np
import pytest
import torch

from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.gaussian import mu_squared
from terrine.privacy.noise import ReplayNoise, SecureNoise, lattice_step
from terrine.transcription.accounting import event_of
from terrine.transcription.annotation import DataAnnotation, gradient
from terrine.transcription.settings import Annotation, Transcription


def mechanism(**settings):
    return DataAnnotation(Annotation(**settings))


def distributions(*shape, seed=0, sharp=4.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.float64).mul(sharp).softmax(-1)


def annotation_loop(settings, teacher, student):
    """Equation 3 without noise, one client, sample and class at a time."""
    expected = student.clone()
    samples, classes = student.shape
    for client in teacher:
        found = gradient(client, student, settings.distillation, settings.balance, settings.gradient_of)
        masked = [[0.0] * classes for _ in range(samples)]
        for sample in range(samples):
            for j in sorted(range(classes), key=lambda j: -abs(float(found[sample, j])))[: settings.top_k]:
                masked[sample][j] = float(found[sample, j])
        squares = [sum(value**2 for value in row) for row in masked]
        for sample in range(samples):
            norm = math.sqrt(sum(squares) if settings.norm == "batch" else squares[sample])
            if settings.limit == "normalise":
                scale = settings.beta / (norm + settings.stability)
            else:
                scale = min(1.0, settings.beta / norm)
            for j in range(classes):
                expected[sample, j] -= settings.step * scale * masked[sample][j] / len(teacher)
    return expected


@pytest.mark.parametrize("norm", ["batch", "sample"])
@pytest.mark.parametrize("limit", ["normalise", "clip"])
@pytest.mark.parametrize("distillation", ["decoupled", "classic"])
@pytest.mark.parametrize("of", ["probabilities", "scores"])
@pytest.mark.parametrize("top_k", [2, 5])
def test_the_annotation_is_the_papers_equation(norm, limit, distillation, of, top_k):
    teacher, student = distributions(3, 7, 5), distributions(7, 5, seed=1)
    settings = Annotation(
        beta=0.3, sigma=0, norm=norm, top_k=top_k, step=0.1, limit=limit, distillation=distillation, gradient_of=of
    )
    annotation = DataAnnotation(settings)
    found = annotation.annotate(annotation.total(teacher, student), student, 3, None)
    expected = annotation_loop(settings, teacher, student)
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)


def test_sums_for_noise_are_those_without_it_up_to_the_lattice():
    teacher, student = distributions(4, 7, 5), distributions(7, 5, seed=1)
    steps = mechanism(beta=0.3, sigma=20.0, top_k=3).total(teacher, student)
    assert steps.dtype == np.int64
    plain = mechanism(beta=0.3, sigma=0, top_k=3).total(teacher, student)
    np.testing.assert_allclose(steps * lattice_step(20.0), plain, atol=1e-7, rtol=0)


def adversaries(samples, classes):
    """Return extreme teacher probabilities: certain of one class, certain of different classes, or uniform."""
    eye = torch.eye(classes, dtype=torch.float64)
    certain = [eye[j].expand(samples, classes) for j in range(classes)]
    varied = [eye[(torch.arange(samples) + j) % classes] for j in range(classes)]
    uniform = torch.full((samples, classes), 1 / classes, dtype=torch.float64)
    return torch.stack([*certain, *varied, uniform, *distributions(10, samples, classes, sharp=60.0)])


@pytest.mark.parametrize("top_k", [2, 4])
@pytest.mark.parametrize("limit", ["normalise", "clip"])
@pytest.mark.parametrize("norm", ["batch", "sample"])
def test_replacing_a_client_moves_the_sum_by_no_more_than_is_charged(norm, limit, top_k):
    """Exact integers. One other client takes part; every pair of teachers is a pair of neighbours."""
    samples, classes, sigma = 3, 4, 3.0
    student, other = distributions(samples, classes, seed=1), distributions(samples, classes, seed=2)
    settings = mechanism(beta=0.05, sigma=sigma, norm=norm, top_k=top_k, limit=limit)
    totals = [settings.total(torch.stack([other, one]), student) for one in adversaries(samples, classes)]
    unit = int(1 / lattice_step(sigma))
    run = Transcription(annotation=settings.settings, iterations=1, batch=samples, epsilon=1e6)
    charged = mu_squared(event_of(run, classes))
    for one, two in itertools.combinations(totals, 2):
        squares = (one - two).astype(object) ** 2
        assert (squares.sum() if norm == "batch" else squares.sum(axis=1).max()) <= 4 * unit**2
        assert squares.sum() / unit**2 / sigma**2 <= charged


@pytest.mark.parametrize("norm", ["batch", "sample"])
def test_opposite_gradients_attain_the_bound(norm):
    """Classic distillation of scores, two classes: gradients s − p of certain teachers point in opposite directions."""
    student, sigma = torch.full((3, 2), 0.5, dtype=torch.float64), 50.0
    settings = mechanism(
        beta=0.01, sigma=sigma, norm=norm, top_k=2, limit="clip", distillation="classic", gradient_of="scores"
    )
    one, two = (settings.total(torch.eye(2, dtype=torch.float64)[j].expand(1, 3, 2), student) for j in (0, 1))
    distance = np.linalg.norm((one - two) * lattice_step(sigma))
    assert distance == pytest.approx(2 * (1 if norm == "batch" else math.sqrt(3)), rel=1e-6)


@pytest.mark.parametrize("norm", ["batch", "sample"])
def test_a_client_that_diverged_counts_as_zero(norm):
    teacher, student = distributions(3, 4, 5), distributions(4, 5, seed=1)
    settings = mechanism(beta=1.0, sigma=5.0, norm=norm, top_k=5)
    broken = teacher.clone()
    broken[1] = math.nan
    np.testing.assert_array_equal(settings.total(broken, student), settings.total(teacher[[0, 2]], student))


def test_sums_of_groups_add_up_exactly_in_any_order():
    teacher, student = distributions(9, 4, 5), distributions(4, 5, seed=1)
    settings = mechanism(beta=1.0, sigma=50.0, top_k=4)
    whole = settings.total(teacher, student)
    parts = [settings.total(part, student) for part in (teacher[5:], teacher[:2], teacher[2:5])]
    assert np.array_equal(whole, parts[0] + parts[1] + parts[2])
    assert np.array_equal(whole, parts[2] + parts[0] + parts[1])


def test_noise_covers_all_coordinates_so_the_mask_of_the_gradient_is_not_released():
    teacher, student = distributions(2, 30, 8), distributions(30, 8, seed=1)
    settings = mechanism(beta=1.0, sigma=10.0, top_k=3)
    total = settings.total(teacher[:1], student)
    assert ((total != 0).sum(1) == 3).all()
    changed = settings.annotate(total, student, 1, ReplayNoise(0)).double() - student
    assert (changed.abs() > 1e-7).all()


@pytest.mark.parametrize("noise", [ReplayNoise(3), SecureNoise()])
def test_noise_has_mean_zero_and_covariance_sigma_beta_squared(noise):
    clients, samples, sigma, beta, step = 4, 5000, 2.0, 0.25, 0.5
    student = distributions(1, 3, seed=1).expand(samples, 3).contiguous()
    settings = mechanism(beta=beta, sigma=sigma, top_k=3, step=step)
    silent = np.zeros((samples, 3))
    changes = (student - settings.annotate(silent, student, clients, noise).double()).numpy() * clients / step
    deviation = sigma * beta
    # 6.5 deviations: one draw of the secure noise in 10^9 lies outside.
    assert np.abs(changes.mean(0)).max() < 6.5 * deviation / math.sqrt(samples)
    covariance = np.cov(changes.T)
    # The sampling deviation of a (co)variance is about σ² √(2/n) at most.
    np.testing.assert_allclose(
        covariance, deviation**2 * np.eye(3), atol=6.5 * deviation**2 * math.sqrt(2 / samples), rtol=0
    )


def test_more_classes_than_there_are_cannot_be_kept():
    student = distributions(4, 5)
    with pytest.raises(SettingError, match="top_k is 6, but there are 5 classes"):
        mechanism(top_k=6).total(student[None], student)


def test_noise_is_given_exactly_where_there_is_a_sigma():
    student = distributions(4, 5)
    with pytest.raises(SettingError, match="source of noise"):
        mechanism(sigma=1.0).annotate(np.zeros((4, 5)), student, 1, None)
    with pytest.raises(SettingError, match="source of noise"):
        mechanism(sigma=0.0).annotate(np.zeros((4, 5)), student, 1, ReplayNoise(0))


def test_probabilities_of_another_shape_are_refused():
    with pytest.raises(InputError, match="clients, samples, classes"):
        mechanism().total(distributions(2, 5, 4), distributions(4, 4))


def test_more_clients_than_an_exact_sum_takes_are_refused_however_they_are_grouped():
    annotation = mechanism(beta=1.0, sigma=1.0, top_k=2)
    annotation.check_clients(100_000)
    with pytest.raises(SettingError, match="do not fit an exact sum"):
        annotation.check_clients(2**40)
    # As many as fit, all of one opinion: noise is added without overflow.
    student = distributions(4, 5)
    most = np.full((4, 5), int((2**18 - 1) / lattice_step(1.0)), dtype=np.int64)
    assert (annotation.annotate(most, student, 2**18, ReplayNoise(0)) < student).all()
    mechanism(beta=1.0, sigma=0, top_k=2).check_clients(2**60)
