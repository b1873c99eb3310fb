"""Mechanisms by name, alone or with the budget of a run.

>>> mechanism_of({"mechanism": "confident", "threshold": 150, "sigma1": 120, "sigma2": 40})
ConfidentGNMax(mechanism='confident', threshold=150.0, sigma1=120.0, sigma2=40.0)
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import ValidationError, create_model

from terrine.aggregation.aggregation import Aggregation
from terrine.aggregation.budget import Budget
from terrine.errors import SettingError
from terrine.settings import Kinds

MECHANISMS: Kinds[Aggregation] = Kinds(
    "aggregation",
    Aggregation,  # type: ignore[type-abstract]
    "terrine.aggregation",
    default="histogram",
    key="mechanism",
)


def mechanism_of(description: Mapping[str, Any]) -> Aggregation:
    """Return the mechanism that `Mechanism.describe` described; what else the mapping holds says nothing about it.

    Raises:
        SettingError: an unknown name, a missing parameter, or an impossible value.
    """
    kind = MECHANISMS.of(str(description.get("mechanism")))
    try:
        return kind(**{key: description[key] for key in kind.model_fields if key in description})
    except ValidationError as error:
        faults = ", ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise SettingError(f"mechanism={description['mechanism']}: {faults}.") from error


class _Section(Budget):
    """The section `aggregation` of a run: a mechanism and its budget; processes hand it over by its values."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.model_dump(),)


@cache
def with_budget(kind: type[Aggregation]) -> Any:
    """Return the class of a run's section: the mechanism itself, with the fields of `Budget` beside its parameters."""
    return create_model(kind.__name__, __base__=(_Section, kind), __module__=kind.__module__, __doc__=kind.__doc__)


def _again(values: dict[str, Any]) -> Any:
    return with_budget(MECHANISMS.of(values["mechanism"])).model_validate(values)
