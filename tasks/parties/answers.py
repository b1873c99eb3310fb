"""What the student party has in its folder of answers: the answers, and what they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tasks.parties.config import PartyConfig
from terrine.errors import ArtefactError
from terrine.files import atomic_file

ANSWERS, ABOUT = "answers.npz", "answers.json"
"""The files of the answers, and what they are: the terms, the release, and what the guardian says it cost."""


def write_arrays(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the answers, `passed` and `result`, into the folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_file(folder / ANSWERS, owner_only=True) as file:
        np.savez(file, allow_pickle=False, **dict(arrays))


def stored_answers(config: PartyConfig) -> dict[str, Any] | None:
    """What is known about the answers that are there, or None. Raises ArtefactError for those to other terms."""
    assert config.answers is not None
    path = config.answers / ABOUT
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ArtefactError(f"{path} cannot be read: {error}. Restore it from a backup.") from error
    if not isinstance(about, dict) or about.get("terms") != config.terms.public():
        raise ArtefactError(f"{config.answers} holds answers to other terms. Give `answers` another folder.")
    return about


def read_arrays(config: PartyConfig) -> dict[str, np.ndarray]:
    """The answers: `passed`, bool [asked], and `result`, as the student party has them (`StudentParty.result`).

    Raises ArtefactError where they are missing or damaged.
    """
    assert config.answers is not None
    path = config.answers / ANSWERS
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in ("passed", "result")}
    except Exception as error:  # zipfile and numpy raise errors of many kinds on damaged files
        raise ArtefactError(f"{path} is missing or damaged: {error}. Restore it from a backup.") from error
