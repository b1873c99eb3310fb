"""Several groups in one pass, each normalised by itself."""

import pytest
import torch

from terrine.errors import InputError
from terrine.models.grouped_statistics import grouped_statistics
from terrine.models.registry import build_backbone
from terrine.models.statistics import batch_statistics

MIXED, IN_ORDER = torch.tensor([3, 3, 0, 0, 0, 7, 7, 3]), torch.tensor([0, 0, 3, 3, 3, 7, 7, 7])


@pytest.fixture(params=[MIXED, IN_ORDER], ids=["mixed", "in order"])
def groups(request):
    return request.param


@pytest.fixture(scope="module")
def backbone():
    # In double precision: where a channel hardly varies, its normalisation magnifies rounding a hundredfold.
    return build_backbone("resnet10", channels=1, size=16, seed=1, stem="small").double()


@pytest.fixture
def images():
    return torch.rand(8, 1, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_a_groups_features_are_those_of_a_pass_of_its_own(backbone, images, groups):
    with torch.no_grad(), grouped_statistics(groups):
        found = backbone(images)
    for group in (0, 3, 7):
        own = group == groups
        with torch.no_grad(), batch_statistics(backbone, "current"):
            expected = backbone(images[own])
        torch.testing.assert_close(found[own], expected, atol=1e-9, rtol=1e-9)


def test_gradients_are_those_of_a_pass_of_its_own(backbone, images, groups):
    weight = torch.randn(backbone.feature_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    together = images.clone().requires_grad_()
    with grouped_statistics(groups):
        (backbone(together) @ weight).square().sum().backward()
    for group in (0, 3, 7):
        own = group == groups
        alone = images[own].clone().requires_grad_()
        with batch_statistics(backbone, "current"):
            (backbone(alone) @ weight).square().sum().backward()
        torch.testing.assert_close(together.grad[own], alone.grad, atol=1e-8, rtol=1e-8)


def test_another_groups_images_do_not_reach_a_group(backbone, images, groups):
    changed = images.clone()
    changed[groups == 7] = 1 - changed[groups == 7]
    results = []
    for batch in (images, changed):
        with torch.no_grad(), grouped_statistics(groups):
            results.append(backbone(batch))
    others = groups != 7
    assert torch.equal(results[0][others], results[1][others])
    assert not torch.allclose(results[0][~others], results[1][~others])


def test_a_group_of_one_is_refused():
    with pytest.raises(InputError, match="one image"):
        grouped_statistics(torch.tensor([0, 0, 1]))


def test_half_precision_goes_in_and_comes_out():
    values = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0)).bfloat16()
    with grouped_statistics(torch.tensor([0, 0, 1, 1])):
        found = torch.nn.functional.batch_norm(values, None, None, training=True)
    assert found.dtype == torch.bfloat16
    expected = torch.nn.functional.batch_norm(values[:2].float(), None, None, training=True)
    torch.testing.assert_close(found[:2].float(), expected, atol=0.02, rtol=0.02)
