"""Check that existing artefacts were made with a run's current settings."""

from __future__ import annotations

from tasks.config.params import Params
from tasks.config.values import digest
from tasks.runtime.release_identity import PLACES
from tasks.runtime.run import Run
from terrine.errors import ArtefactError


def data_settings_digest(params: Params) -> str:
    """Return a digest of the settings that determine a run's records and whether they are public."""
    # Defaults are left out, so that a setting added by a later version does not change the digest.
    values = params.data.model_dump(mode="json", exclude=PLACES | {"edition"}, exclude_defaults=True)
    return digest(values | {"name": params.data.name}, 64)


def check_records(run: Run) -> None:
    """Check that a run's records were read with its current settings.

    If these were now the settings of a public benchmark, private records would not be charged.

    Raises:
        ArtefactError: If the records were read with other settings.
    """
    stored = run.folders.dataset_manifest().get("data_settings_digest")
    check_made(run, records=stored == data_settings_digest(run.params))


def check_made(run: Run, **is_current: bool) -> None:
    """Check that artefacts were made with a run's current settings.

    Args:
        run: The run.
        **is_current: Whether the artefact of this name was made with the current settings.

    Raises:
        ArtefactError: For the first artefact that was made with other settings.
    """
    for name, current in is_current.items():
        if not current:
            raise ArtefactError(
                f"The {name} of {run.name} were made with other settings or by another version. Run all stages again: "
                f"terrine run {run.name}. Nothing was released."
            )
