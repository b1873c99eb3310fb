"""Several groups in one pass, normalised separately, in places whose number does not depend on images."""

import pytest
import torch

from terrine.errors import InputError
from terrine.models.architecture import build_backbone
from terrine.models.statistics import batch_statistics, grouped_statistics

PLACES, COUNTS = 4, [2, 3, 0, 4]


def own(group, counts=COUNTS):
    """The places of a group's images."""
    return list(range(group * PLACES, group * PLACES + counts[group]))


def padding(counts=COUNTS):
    return [place for place in range(len(counts) * PLACES) if place % PLACES >= counts[place // PLACES]]


@pytest.fixture(params=[False, True], ids=["one by one", "at once"])
def grouped(request):
    return lambda counts=COUNTS: grouped_statistics(counts, PLACES, at_once=request.param)


@pytest.fixture(scope="module")
def backbone():
    # In double precision: where a channel hardly varies, its normalisation magnifies rounding a hundredfold.
    return build_backbone("resnet10", channels=1, size=16, seed=1, stem="small").double()


@pytest.fixture
def images():
    return torch.rand(16, 1, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_a_groups_features_are_those_of_a_pass_of_its_own(backbone, images, grouped):
    with torch.no_grad(), grouped():
        found = backbone(images)
    for group in (0, 1, 3):
        with torch.no_grad(), batch_statistics(backbone, "current"):
            expected = backbone(images[own(group)])
        torch.testing.assert_close(found[own(group)], expected, atol=1e-9, rtol=1e-9)


def test_gradients_are_those_of_a_pass_of_its_own_and_none_reaches_padding(backbone, images, grouped):
    weight = torch.randn(backbone.feature_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    together = images.clone().requires_grad_()
    with grouped():
        (backbone(together) @ weight).square().sum().backward()
    for group in (0, 1, 3):
        alone = images[own(group)].clone().requires_grad_()
        with batch_statistics(backbone, "current"):
            (backbone(alone) @ weight).square().sum().backward()
        torch.testing.assert_close(together.grad[own(group)], alone.grad, atol=1e-8, rtol=1e-8)
    assert not together.grad[padding()].any()


@pytest.mark.parametrize(
    "counts", [[2, 3, 0, 4], [2, 3, 0, 2], [2, 3, 0, 0]], ids=["exchanged", "two images fewer", "none left"]
)
def test_neither_another_groups_images_nor_their_number_reaches_a_group_by_a_bit(backbone, images, grouped, counts):
    """In single precision, where another kernel would show."""
    backbone, images = build_backbone("resnet10", channels=1, size=16, seed=1, stem="small"), images.float()
    changed = images.clone()
    changed[12:] = 1 - changed[12:]
    results = []
    for batch, own_counts in ((images, COUNTS), (changed, counts)):
        with torch.no_grad(), grouped(own_counts):
            results.append(backbone(batch))
    for group in (0, 1):
        assert torch.equal(results[0][own(group)], results[1][own(group)])
    assert not torch.allclose(results[0][12:], results[1][12:])


def test_what_lies_in_padded_places_reaches_nobody(images, grouped):
    strange = images.clone()
    strange[padding()] = 1e30
    results = []
    for batch in (images, strange):
        with torch.no_grad(), grouped():
            results.append(torch.nn.functional.batch_norm(batch, None, None, training=True))
    assert torch.equal(results[0], results[1])
    assert not results[0][padding()].any()


def test_a_group_of_one_and_one_without_room_are_refused():
    with pytest.raises(InputError, match="one image"):
        grouped_statistics([2, 1], 4)
    with pytest.raises(InputError, match="5 images does not fit into 4"):
        grouped_statistics([2, 5], 4)
    with pytest.raises(InputError, match="7 images was given for 2 groups of 4"), grouped_statistics([2, 2], 4):
        torch.nn.functional.batch_norm(torch.zeros(7, 1), None, None, training=True)


def test_half_precision_goes_in_and_comes_out(grouped):
    values = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0)).bfloat16()
    with grouped([2]):
        found = torch.nn.functional.batch_norm(values, None, None, training=True)
    assert found.dtype == torch.bfloat16
    expected = torch.nn.functional.batch_norm(values[:2].float(), None, None, training=True)
    torch.testing.assert_close(found[:2].float(), expected, atol=0.02, rtol=0.02)
