"""How a party's records become pictures: what terms say of it, and what a party may not say otherwise."""

from __future__ import annotations

from typing import Any

from tasks.parties.agreement.terms import Terms
from terrine.data.source import SOURCES, Source
from terrine.errors import SettingError
from terrine.geometry import as_size, in_json, is_size


def how_read(data: Source) -> dict[str, Any]:
    """Return fit and window of a run's data, as terms have them."""
    limits = getattr(data, "limits", None) or getattr(data, "window", None)
    return {"fit": getattr(data, "fit", "stretch"), "window": limits}


def pictures_of(terms: Terms, data: dict[str, Any]) -> dict[str, Any]:
    """Return what a party's `data` are to say of size, channels, fit and window: what the terms say.

    What its kind of data does not have is left out: there, pixels of 8 bits are what they are.

    data: the party's own. Raises SettingError where they say something else, with both values.
    """
    kind = SOURCES.of(data["name"]) if data.get("name") in SOURCES.names() else Source
    agreed = {key: getattr(terms, key) for key in ("size", "channels") if getattr(terms, key) is not None}
    agreed |= {key: getattr(terms, key) for key in ("fit", "window") if key in kind.model_fields}
    for key, value in agreed.items():
        said = _as_agreed(key, data.get(key, value))
        if said != value:
            raise SettingError(
                f"own.params.data.{key}={_shown(said)}, and the terms say {_shown(value)}: teachers would learn from "
                f"images of another geometry or brightness than was agreed on. Set it to {_shown(value)}, or leave it "
                "out."
            )
    return {key: in_json(value) if key == "size" else value for key, value in agreed.items()}


def _as_agreed(key: str, said: Any) -> Any:
    if key == "size" and is_size(said):
        return as_size(said)
    if key == "window" and isinstance(said, str):
        from terrine.data.sources.dicom import limits_of

        return limits_of(said)
    return tuple(said) if key == "window" and isinstance(said, list) else said


def _shown(value: Any) -> str:
    return "null" if value is None else str(list(value)) if isinstance(value, tuple) else str(value)
