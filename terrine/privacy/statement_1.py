"""Privacy statements as version 1 wrote them, so that those that were published can still be checked.

Version 1 gave the realised ε as the guarantee whatever the mechanism, knew nothing of accounts, and did not speak of
names. Reading one gives a statement of the present, whose sentences say what holds.
"""

from collections.abc import Mapping
from typing import Any

from terrine.privacy.accounting.events import GaussianEvent, counts, from_json

ADDED = frozenset({"epsilon_account", "task"})
"""Fields that a version 1 statement does not have."""

_NEIGHBOURS = {
    "record": "one record replaced, added or removed, the others staying with their teachers",
    "group": "all records of one group replaced, added or removed, the others staying with their teachers",
    "label": "the label of one record exchanged, its image and all other records staying as they are",
}
_PROTECTED = {
    "record": "any one record exchanged, added or removed",
    "group": "all records of any one group exchanged, added or removed",
    "label": "the label of any one record exchanged (its image is not protected)",
}


def as_version_1(current: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """What version 1 would have written for a statement.

    Args:
        current: What the present version writes for it.
        content: The file that was found. Version 1 priced what is not Gaussian less tightly: a larger ε than today's
            is taken as it is, because what was an upper bound stays one.
    """
    left = ADDED | {"epsilon_guaranteed"}
    written = {name: value for name, value in current.items() if name not in left}
    written |= {"schema_version": 1, "neighbouring": _NEIGHBOURS[current["unit"]]}
    gaussian = all(isinstance(part, GaussianEvent) for part in counts(from_json(current["event"])))
    found = content.get("epsilon")
    if not gaussian and isinstance(found, float) and written["epsilon"] is not None:
        written["epsilon"] = max(found, written["epsilon"])
    if written["private"]:
        written["summary"] = _summary(written)
    return written


def _summary(written: Mapping[str, Any]) -> str:
    epsilon, delta = written["epsilon"], written["delta"]
    return (
        f"These {written['answered']} answers, released for {written['asked']} of {written['queries']} queries, and "
        f"everything computed from them, are ({epsilon:g}, {delta:g})-differentially private: with "
        f"{_PROTECTED[written['unit']]}, no outcome becomes more than e^{epsilon:g} times as likely, up to a "
        f"probability of {delta:g}. Together with all earlier releases about the same dataset the figure is "
        f"ε={written['epsilon_dataset']:g}. It holds for whatever the data are, and for anyone outside "
        + (
            "the operator of the pipeline."
            if written["trust_model"] == "central"
            else "the parties, as long as the privacy guardian colludes with none of them."
        )
    )
