"""Nested mappings of parameters: read from YAML, laid over one another, flattened, digested."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import BaseModel

from terrine.errors import SettingError

_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where PyYAML has libyaml


class Loader(_SAFE):
    """Reads what `yaml.safe_load` reads, but for `no` and its like, which are words, as YAML 1.2 and DVC have it."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:bool"]
        for first, known in _SAFE.yaml_implicit_resolvers.items()
    }


Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF")


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping. Raises SettingError if the file is missing, no YAML, or no mapping."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except FileNotFoundError as error:
        raise SettingError(f"{path}: there is no such parameter file.") from error
    except (yaml.YAMLError, OSError, ValueError, RecursionError) as error:  # an integer of 5,000 digits is a ValueError
        raise SettingError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(values, dict):
        raise SettingError(f"{path} must hold a mapping of parameters, not {type(values).__name__}.")
    return values


def merge(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with `overrides` laid over it, section by section; weights of sources are replaced whole."""
    merged = dict(base)
    for key, value in overrides.items():
        both_sections = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both_sections and key != "sources" else value
    return merged


def parse_assignment(text: str) -> dict[str, Any]:
    """Turn `section.key=value` (value in YAML) into a nested mapping.

    >>> parse_assignment("aggregation.epsilon=2")
    {'aggregation': {'epsilon': 2}}
    """
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise SettingError(f"--set {text}: write section.key=value, for example --set aggregation.epsilon=2.")
    try:
        nested: Any = yaml.load(value, Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingError(f"--set {text}: '{value}' is no YAML value. Put it in quotes.") from error
    if isinstance(nested, str):
        nested = _number_like(nested)
    for part in reversed(parts):
        nested = {part: nested}
    return nested


def parse_assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Return assignments as `parse_assignment` reads them, each laid over those before it."""
    values: dict[str, Any] = {}
    for text in texts:
        values = merge(values, parse_assignment(text))
    return values


def _number_like(text: str) -> str | float:
    """YAML 1.1 reads 1e-5 as a string; people mean a number. Other text in quotes, such as "2", stays text."""
    return float(text) if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+", text) else text


def as_yaml(value: Any) -> str:
    """Write a value as YAML on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    # YAML ends a single value with a document mark.
    return text.strip().removesuffix("...").strip()


def as_document(values: Mapping[str, Any]) -> str:
    """Write a mapping as a YAML file of many lines, in its own order."""
    text: str = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=110)
    return text


def flat(values: dict[str, Any], prefix: str = "", whole: str = "") -> dict[str, Any]:
    """Turn nested mappings into `section.key` pairs; what stands under the key `whole` stays a mapping."""
    pairs: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value and key != whole:
            pairs |= flat(value, f"{prefix}{key}.", whole)
        else:
            pairs[f"{prefix}{key}"] = value
    return pairs


def digest(value: Any, length: int = 12) -> str:
    """Return a short hexadecimal digest of a JSON-like value; equal values have equal digests."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
