"""The last x % of a network: which parameters partial fine-tuning trains (an ablation of DIET-PATE, Anonymous 2025)."""

from torch import nn

from terrine.errors import SettingError


def last_parameters(network: nn.Module, percent: float) -> list[tuple[str, nn.Parameter]]:
    """Return the fewest last parameters, whole tensors with their names, that hold at least `percent` of all weights.

    "Last" is the order in which a network registers its layers, from input to output in feed-forward networks. Tensors
    are not cut, so the share may be larger than asked for: the last convolution of a ResNet18 alone is 21 %. In network
    order. Raises SettingError for a network without weights.
    """
    parameters = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    if not parameters:
        raise SettingError(
            "trainable: this network has no weights to train. Train a head alone (kind=linear), or choose a backbone "
            "with weights (resnet18)."
        )
    total = sum(parameter.numel() for _, parameter in parameters)
    chosen: list[tuple[str, nn.Parameter]] = []
    held = 0
    for name, parameter in reversed(parameters):
        if held * 100 >= percent * total:
            break
        chosen.append((name, parameter))
        held += parameter.numel()
    return chosen[::-1]
