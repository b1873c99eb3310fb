"""Mechanisms by name, as params.yaml and the command line give them.

>>> build("confident", {"threshold": 150, "sigma1": 120, "sigma2": 40})
ConfidentGNMax(threshold=150, sigma1=120, sigma2=40)
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from terrine.aggregation.confident import ConfidentGNMax
from terrine.aggregation.gnmax import GNMax
from terrine.aggregation.histogram import GaussianHistogram
from terrine.aggregation.interactive import InteractiveGNMax
from terrine.aggregation.laplace import LNMax
from terrine.aggregation.mechanism import Mechanism
from terrine.errors import SettingError

MECHANISMS: dict[str, Callable[..., Mechanism]] = {
    kind.name: kind for kind in (LNMax, GNMax, ConfidentGNMax, InteractiveGNMax, GaussianHistogram)
}


def build(name: str, parameters: Mapping[str, Any]) -> Mechanism:
    """The mechanism of this name with these parameters.

    Args:
        name: One of `MECHANISMS`.
        parameters: What its class takes, by name.

    Raises:
        SettingError: an unknown name, a missing or unknown parameter, or an impossible value; the message lists what
            is known.
    """
    if name not in MECHANISMS:
        raise SettingError(
            f"There is no aggregation mechanism {name!r}: choose one of {', '.join(sorted(MECHANISMS))}."
        )
    kind = MECHANISMS[name]
    known = {field.name: field.default is MISSING and field.default_factory is MISSING for field in fields(kind)}  # type: ignore[arg-type]
    missing = [parameter for parameter, required in known.items() if required and parameter not in parameters]
    unknown = [parameter for parameter in parameters if parameter not in known]
    if missing or unknown:
        fault = f"lacks {', '.join(missing)}" if missing else f"does not take {', '.join(unknown)}"
        raise SettingError(f"The aggregation mechanism {name!r} {fault}; its parameters are {', '.join(known)}.")
    return kind(**parameters)
