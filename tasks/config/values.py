"""Nested mappings of parameters: YAML, merging, flattening and digests."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import BaseModel

from terrine.errors import SettingError

_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast if PyYAML includes libyaml


class Loader(_SAFE):
    """YAML loader. Reads `no`, `yes`, `on` and `off` as strings, as YAML 1.2 and DVC do, and refuses repeated keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping; a key that occurs twice is an error, because the first value would be lost."""
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in {key for key in keys if keys.count(key) > 1}:
            raise yaml.YAMLError(f"the key '{key}' occurs twice{node.start_mark}. Combine the two.")
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:bool"]
        for first, known in _SAFE.yaml_implicit_resolvers.items()
    }


Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF")


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        SettingError: If the file is missing or does not contain a YAML mapping.
    """
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except FileNotFoundError as error:
        raise SettingError(f"{path} does not exist.") from error
    except (yaml.YAMLError, OSError, ValueError, RecursionError) as error:  # an integer of 5,000 digits is a ValueError
        raise SettingError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(values, dict):
        raise SettingError(f"{path} must contain a mapping of parameters, not {type(values).__name__}.")
    return values


def merge(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return `base` recursively merged with `overrides`; the mapping `sources` is replaced as a whole."""
    merged = dict(base)
    for key, value in overrides.items():
        both_sections = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both_sections and key != "sources" else value
    return merged


def as_yaml(value: Any) -> str:
    """Return a value as YAML on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.strip().removesuffix("...").strip()  # without the document end marker


def as_document(values: Mapping[str, Any]) -> str:
    """Return a mapping as a YAML document, with keys in the mapping's order."""
    text: str = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=110)
    return text


def flat(values: dict[str, Any], prefix: str = "", whole: str = "") -> dict[str, Any]:
    """Flatten nested mappings to keys `section.key`; the value of the key `whole` stays a mapping."""
    pairs: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value and key != whole:
            pairs |= flat(value, f"{prefix}{key}.", whole)
        else:
            pairs[f"{prefix}{key}"] = value
    return pairs


def digest(value: Any, length: int = 12) -> str:
    """Return the first `length` hexadecimal digits of the SHA-256 of a JSON value or model."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
