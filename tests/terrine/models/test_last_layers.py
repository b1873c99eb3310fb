import pytest
from torch import nn

from terrine.errors import SettingError
from terrine.models.last_layers import last_parameters
from terrine.models.registry import build_backbone


def plainly(network: nn.Module, percent: float) -> list[str]:
    """The shortest list of last tensors that holds at least `percent` of all weights, found by trying every length."""
    named = list(network.named_parameters())
    total = sum(value.numel() for _, value in named)
    for length in range(1, len(named) + 1):
        tail = named[len(named) - length :]
        if 100 * sum(value.numel() for _, value in tail) >= percent * total:
            return [name for name, _ in tail]
    raise AssertionError("a network holds all of its own weights")


@pytest.mark.parametrize("kind", ["small_cnn", "cryptonet", "resnet10", "vgg9"])
@pytest.mark.parametrize("percent", [0.5, 3, 25, 60, 100])
def test_the_last_tensors_are_taken_until_they_hold_the_share(kind, percent):
    network = build_backbone(kind, channels=1, size=16, seed=0).network
    assert [name for name, _ in last_parameters(network, percent)] == plainly(network, percent)


def test_all_is_all_and_at_least_one_tensor_is_taken():
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 90))
    assert [name for name, _ in last_parameters(network, 100)] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert [name for name, _ in last_parameters(network, 1)] == ["1.bias"]


def test_a_network_without_parameters_is_refused():
    with pytest.raises(SettingError, match="no weights to train"):
        last_parameters(nn.Flatten(), 10)
