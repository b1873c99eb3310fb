"""The network of the first PATE papers."""

import pytest
import torch
from torch import nn

from terrine.models.registry import build_backbone


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (1, 8)])
def test_it_has_two_convolutions_with_pooling_one_linear_layer_and_no_batch_normalisation(channels, size):
    backbone = build_backbone("pate_cnn", channels=channels, size=size, seed=0)
    kinds = [type(layer) for layer in backbone.network]
    assert kinds == [nn.Conv2d, nn.ReLU, nn.MaxPool2d] * 2 + [nn.Flatten, nn.Linear, nn.ReLU]
    images = torch.rand(5, channels, size, size)
    features = backbone.features(images, "original")
    assert features.shape == (5, backbone.feature_dim)
    # Without batch statistics an image's features do not depend on its batch.
    torch.testing.assert_close(features[:1], backbone.features(images[:1], "original"))
    assert (features > 0).any(dim=0).float().mean() > 0.3
