"""Stacked Adam is torch's Adam, problem by problem."""

import torch

from terrine.teachers.stacked_training import StackedAdam


def test_every_problem_moves_as_under_torchs_adam_and_one_that_sits_out_is_left_alone():
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(3, 4, 2, generator=generator), torch.randn(3, 5, generator=generator)]
    alone = [[value[problem].clone().requires_grad_() for value in values] for problem in range(3)]
    optimisers = [torch.optim.Adam(parameters, lr=1.0) for parameters in alone]
    stacked = StackedAdam(values)
    for number, active in enumerate([[0, 1, 2], [0, 2], [1], [0, 1, 2], [2]]):
        gradients = [torch.randn(value.shape, generator=generator) for value in values]
        rate = 0.1 * 0.7**number
        stacked.step(gradients, active, rate)
        for problem in active:
            for parameter, gradient in zip(alone[problem], gradients, strict=True):
                parameter.grad = gradient[problem].clone()
            optimisers[problem].param_groups[0]["lr"] = rate
            optimisers[problem].step()
    for problem in range(3):
        for value, parameter in zip(values, alone[problem], strict=True):
            torch.testing.assert_close(value[problem], parameter.detach(), atol=1e-6, rtol=1e-6)
