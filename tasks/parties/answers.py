"""The student party's folder of answers: the answers, the terms they belong to, and what the guardian charged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.parties.config import PartyConfig
from terrine.errors import ArtefactError
from terrine.files import atomic_file

ANSWERS, ABOUT = "answers.npz", "answers.json"


def write_answers(config: PartyConfig, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
    """Write the answers (`passed` and `result`) and the facts about them; the folder is created."""
    assert config.answers is not None
    config.answers.mkdir(parents=True, exist_ok=True)
    with atomic_file(config.answers / ANSWERS, owner_only=True) as file:
        np.savez(file, allow_pickle=False, **dict(arrays))
    with atomic_file(config.answers / ABOUT, owner_only=True) as file:
        file.write((json.dumps(about, indent=2, sort_keys=True) + "\n").encode())


def stored_answers(config: PartyConfig) -> dict[str, Any] | None:
    """Return the facts about the stored answers, or None if none are stored.

    Raises:
        ArtefactError: The stored answers are damaged, or belong to other terms.
    """
    assert config.answers is not None
    path = config.answers / ABOUT
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ArtefactError(f"{path} cannot be read: {error}. Restore it from a backup.") from error
    if not isinstance(about, dict) or about.get("terms") != config.terms.digest:
        raise ArtefactError(f"{config.answers} holds answers to other terms. Give `answers` another folder.")
    return about


def read_arrays(config: PartyConfig) -> dict[str, np.ndarray]:
    """Return the answers: `passed`, bool [asked], and `result` (`StudentRound.run`).

    Raises:
        ArtefactError: The stored answers are missing or damaged.
    """
    assert config.answers is not None
    path = config.answers / ANSWERS
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in ("passed", "result")}
    except Exception as error:  # zipfile and numpy raise errors of many kinds on damaged files
        raise ArtefactError(f"{path} is missing or damaged: {error}. Restore it from a backup.") from error
