"""Flow of a trial: all parties of a collaboration on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE


@task(name="trial", cache_policy=NO_CACHE, persist_result=False)
def run_parties(folder: str, limit: float) -> dict[str, Any]:
    """Run both services and submit every teacher party's reports; return the known facts about the answers."""
    from tasks.collaboration.local_training import report_source
    from tasks.parties.trial import run_trial

    return run_trial(Path(folder), report_source, limit=limit)


@flow(name="collaborate", flow_run_name="{folder}", validate_parameters=False)
def collaborate(folder: str, limit: float = 1800.0) -> dict[str, Any]:
    """Run the parties whose folders are in `folder` (`terrine party accept`); return the guardian's charges."""
    return run_parties(folder, limit)
