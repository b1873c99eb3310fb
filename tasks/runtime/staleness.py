"""Where what lies there of a run comes from: a stage that is run by itself finds what earlier ones left, whatever was
changed since, and must not tell it under the settings of today where others made it."""

from __future__ import annotations

from tasks.config.params import Params
from tasks.config.values import digest
from tasks.runtime.release_identity import PLACES
from tasks.runtime.run import Run
from terrine.errors import ArtefactError


def data_settings_digest(params: Params) -> str:
    """Return a digest of the settings that decide what a run's records are, and whether anybody may read them."""
    # Without what is as it always is: a setting that a later version adds makes no records others.
    said = params.data.model_dump(mode="json", exclude=PLACES | {"edition"}, exclude_defaults=True)
    return digest(said | {"name": params.data.name}, 64)


def check_records(run: Run) -> None:
    """Refuse, as ArtefactError, records that were laid down under other settings than the run has now.

    Private ones would be charged to nobody under the settings of a public benchmark.
    """
    check_made(
        run, records=run.folders.dataset_manifest().get("data_settings_digest") == data_settings_digest(run.params)
    )


def check_made(run: Run, **as_now: bool) -> None:
    """Refuse, as ArtefactError, the first of these that was not made under the settings that a statement would name."""
    for what, same in as_now.items():
        if not same:
            raise ArtefactError(
                f"The {what} of {run.name} were made under other settings than it has now, or by another version. Make "
                f"its stages in their order: terrine run --preset {run.name}. Nothing was released."
            )
