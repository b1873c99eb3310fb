"""The losses and their gradients, against plain loops over the equation and against automatic differentiation."""

import math

import pytest
import torch

from terrine.transcription.annotation import FLOOR, gradient


def distributions(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.float64).mul(4).softmax(-1)


def loss(teacher, student, distillation, balance=8.0):
    """The losses whose gradients are told, [..., B], as differentiable operations."""
    p, s = (values.clamp(FLOOR, 1 - FLOOR) for values in (teacher, student))
    if distillation == "classic":
        return -(p * s.log()).sum(-1)
    target = torch.nn.functional.one_hot(teacher.argmax(-1), teacher.shape[-1]).bool()
    own = p * (p / s).log() + (1 - p) * ((1 - p) / (1 - s)).log()
    others = p / (1 - p) * (p * (1 - s) / (s * (1 - p))).log()
    return torch.where(target, own, balance * others).sum(-1)


def decoupled_loop(teacher, student, balance):
    """Equation 2 for one sample, term by term."""
    target = max(range(len(teacher)), key=lambda j: teacher[j])
    p, s = teacher[target], student[target]
    total = p * math.log(p / s) + (1 - p) * math.log((1 - p) / (1 - s))
    for j in range(len(teacher)):
        if j != target:
            p, s = teacher[j], student[j]
            total += balance * p / (1 - p) * math.log(p * (1 - s) / (s * (1 - p)))
    return total


@pytest.mark.parametrize("balance", [1.0, 8.0])
@pytest.mark.parametrize("classes", [2, 5, 10])
def test_the_decoupled_loss_is_the_papers_equation(classes, balance):
    teacher, student = distributions(3, 6, classes), distributions(6, classes, seed=1)
    found = loss(teacher, student, "decoupled", balance)
    for client in range(3):
        for sample in range(6):
            expected = decoupled_loop(teacher[client, sample].tolist(), student[sample].tolist(), balance)
            assert float(found[client, sample]) == pytest.approx(expected, abs=1e-6)


def test_the_classic_loss_is_cross_entropy():
    teacher, student = distributions(2, 4, 5), distributions(4, 5, seed=1)
    found = loss(teacher, student, "classic")
    for client in range(2):
        for sample in range(4):
            pairs = zip(teacher[client, sample].tolist(), student[sample].tolist(), strict=True)
            assert float(found[client, sample]) == pytest.approx(-sum(p * math.log(s) for p, s in pairs), abs=1e-6)


@pytest.mark.parametrize("distillation", ["decoupled", "classic"])
def test_gradients_are_those_of_automatic_differentiation(distillation):
    teacher, student = distributions(3, 6, 5), distributions(6, 5, seed=1)
    for client in range(3):
        leaf = student.clone().requires_grad_()
        loss(teacher[client], leaf, distillation).sum().backward()
        torch.testing.assert_close(gradient(teacher, student, distillation)[client], leaf.grad, atol=1e-6, rtol=1e-9)
        scores = student.log().requires_grad_()
        loss(teacher[client], scores.softmax(-1), distillation).sum().backward()
        found = gradient(teacher, student, distillation, of="scores")[client]
        torch.testing.assert_close(found, scores.grad, atol=1e-6, rtol=1e-9)


def test_certain_teachers_and_students_give_finite_gradients():
    certain = torch.eye(4, dtype=torch.float64)
    for distillation in ("decoupled", "classic"):
        for of in ("probabilities", "scores"):
            assert gradient(certain[None], certain.flip(0), distillation, of=of).isfinite().all()


def test_as_printed_the_others_part_has_no_minimum_at_the_teacher():
    """As docs/dpsd.md states, the printed loss pushes a student that already agrees towards the other classes."""
    teacher = distributions(1, 8, 5)
    at_teacher = gradient(teacher, teacher[0], "decoupled")
    target = torch.nn.functional.one_hot(teacher.argmax(-1), 5).bool()
    torch.testing.assert_close(at_teacher[target], torch.zeros(8, dtype=torch.float64), atol=1e-9, rtol=0)
    assert (at_teacher[~target] < 0).all()
