"""Data-sensitive annotation: limits, mask, sums and noise."""

import inspect
import math

import numpy as np
import pytest
import torch

from terrine.errors import InputError, SettingError
from terrine.privacy.noise import ReplayNoise, SecureNoise, lattice_step
from terrine.transcription.annotation import DataAnnotation, gradient, mask
from terrine.transcription.settings import Annotation


def mechanism(**settings):
    return DataAnnotation(Annotation(**settings))


def distributions(*shape, seed=0, sharp=4.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.float64).mul(sharp).softmax(-1)


def annotation_loop(settings, teacher, student):
    """Equation 3 without noise, one client, sample and class at a time."""
    expected = student.clone()
    for sample in range(len(student)):
        ranked = sorted(range(student.shape[1]), key=lambda j: -float(student[sample, j]))
        kept = ranked[: settings.top_k]
        moved = dict.fromkeys(kept, 0.0)
        for client in range(len(teacher)):
            found = gradient(teacher[client], student, settings.distillation, settings.balance, settings.gradient_of)[
                sample
            ]
            masked = {j: float(found[j]) for j in kept}
            norm = math.sqrt(sum(value**2 for value in masked.values()))
            if settings.limit == "normalise":
                scale = settings.beta / (norm + settings.stability)
            else:
                scale = min(1.0, settings.beta / norm)
            for j in kept:
                moved[j] += scale * masked[j] / len(teacher)
        for j in kept:
            expected[sample, j] -= settings.step * moved[j]
    return expected


@pytest.mark.parametrize("limit", ["normalise", "clip"])
@pytest.mark.parametrize("distillation", ["decoupled", "classic"])
@pytest.mark.parametrize("of", ["probabilities", "scores"])
@pytest.mark.parametrize("top_k", [2, 5])
def test_the_annotation_is_the_papers_equation(limit, distillation, of, top_k):
    teacher, student = distributions(3, 7, 5), distributions(7, 5, seed=1)
    settings = Annotation(
        beta=0.3, sigma=0, top_k=top_k, step=0.1, limit=limit, distillation=distillation, gradient_of=of
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


@pytest.mark.parametrize("limit", ["normalise", "clip"])
def test_no_client_says_more_than_the_bound_that_is_charged(limit):
    """The guarantee itself: a client's contribution, as it enters the exact sum, has norm at most 1 in units of β."""
    teacher = distributions(200, 5, 6, sharp=60.0)
    teacher[0] = torch.eye(6, dtype=torch.float64)[:5]
    student = distributions(5, 6, seed=1, sharp=30.0)
    settings = mechanism(beta=0.05, sigma=3.0, top_k=6, limit=limit)
    for client in teacher:
        steps = settings.total(client[None], student).astype(object)  # squares of whole numbers, exactly
        assert (steps**2).sum(axis=1).max() <= int(1 / lattice_step(3.0)) ** 2


def test_a_client_that_diverged_says_nothing():
    teacher, student = distributions(3, 4, 5), distributions(4, 5, seed=1)
    settings = mechanism(beta=1.0, sigma=5.0, top_k=5)
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


def test_the_mask_comes_from_the_student_alone():
    """Whatever teachers say, however loudly, only the student's top-k classes are ever touched."""
    student = distributions(30, 8, seed=1)
    settings = mechanism(beta=1.0, sigma=0, top_k=3, step=1.0)
    allowed = torch.zeros_like(student).scatter(-1, student.topk(3).indices, 1.0).bool()
    for seed in range(5):
        # Teachers that are sure of the class the student believes least: their gradient is largest outside the mask.
        teacher = torch.full((2, 30, 8), 1e-4, dtype=torch.float64)
        teacher.scatter_(-1, student.argsort(-1)[:, seed % 4].expand(2, 30)[..., None], 1.0)
        changed = settings.annotate(settings.total(teacher, student), student, 2, None).double() - student
        assert (changed[~allowed].abs() < 1e-7).all()
        assert torch.equal(mask(student, 3), student.topk(3).indices.sort(-1).values)
    assert list(inspect.signature(mask).parameters) == ["student", "top_k"]


def test_noise_too_stays_inside_the_mask():
    teacher, student = distributions(2, 30, 8), distributions(30, 8, seed=1)
    settings = mechanism(beta=1.0, sigma=10.0, top_k=3)
    changed = settings.annotate(settings.total(teacher, student), student, 2, ReplayNoise(0)).double() - student
    assert ((changed.abs() > 1e-7).sum(1) == 3).all()


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
        mechanism(sigma=1.0).annotate(np.zeros((4, 3)), student, 1, None)
    with pytest.raises(SettingError, match="source of noise"):
        mechanism(sigma=0.0).annotate(np.zeros((4, 3)), student, 1, ReplayNoise(0))


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
    most = np.full((4, 2), int((2**18 - 1) / lattice_step(1.0)), dtype=np.int64)
    found = annotation.annotate(most, student, 2**18, ReplayNoise(0))
    assert (found.gather(-1, mask(student, 2)) < student.gather(-1, mask(student, 2))).all()
    mechanism(beta=1.0, sigma=0, top_k=2).check_clients(2**60)
