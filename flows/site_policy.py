"""Site policy: the settings that a deployment may override.

The user who starts a deployment may not be the one who decides about budgets. A preset of the site, which is a file on
the site's disk, may set everything.
"""

from __future__ import annotations

from pathlib import Path

from tasks.config.params import parse_assignment
from tasks.config.presets import redact_override
from tasks.config.values import flat, read_yaml
from terrine.errors import SettingError

POLICY = "site.yaml"
"""Name of the project file with the site's own list (`overridable`)."""
OVERRIDABLE = (
    *("seed", "device", "partition", "queries", "backbone", "pretraining", "teachers", "aggregation", "student"),
    *("evaluation", "runner"),
)
"""Sections, or settings in them, that a deployment may override unless site.yaml lists others."""
NEVER = (
    *(
        "ledger",
        "release",
        "privacy",
        "data.public_benchmark",
        "aggregation.noise",
        "aggregation.delta",
        "transcription.delta",
    ),
    "tracking.private_metrics",
)
"""Settings that a deployment may never override: the account and its budget, approval, the protected unit, and the
noise. The same holds for settings that name files and machines of the site (`terrine.settings.SiteLocal`)."""


def check_overrides(root: Path, overrides: list[str]) -> None:
    """Check the overrides of a deployment against the site's policy.

    Raises:
        SettingError: If the policy does not allow one of the overrides.
    """
    path = root / POLICY
    listed = read_yaml(path).get("overridable") if path.is_file() else None
    allowed = tuple(OVERRIDABLE if listed is None else map(str, listed))
    for override in overrides:
        for key in flat(parse_assignment(override)):
            if _below(key, NEVER) or not _below(key, allowed) or redact_override(override) != override:
                raise SettingError(
                    f"A deployment may not override {key}: it may set {', '.join(allowed)}, and never "
                    f"{', '.join(NEVER)} or what names files and machines of the site. Put it into a preset in "
                    "experiments/ on this machine, and start the deployment with preset=NAME. Nothing was released."
                )


def _below(key: str, names: tuple[str, ...]) -> bool:
    return any(f"{key}.".startswith(f"{name}.") for name in names)
