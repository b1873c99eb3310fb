"""The flow of a trial: all parties of a collaboration on this machine, a process each.

A run with `aggregation.where: parties` makes such a trial in its aggregate stage by itself; this flow runs one that
`terrine party init` laid out, with parties that hold their own votes, or data, backbone file and credentials.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.task_runners import ThreadPoolTaskRunner

from tasks.parties.answers import stored_answers
from tasks.parties.config import read_party
from tasks.parties.trial import TrialError, configs_in, end_all, start_party, wait_for


@task(name="party", task_run_name="party {name}", cache_policy=NO_CACHE, persist_result=False)
def attend(name: str, config: str, limit: float) -> str | None:
    """Run one party in a process of its own; return why it failed, or None."""
    process = start_party(Path(config))
    try:
        wait_for([process], limit)
    except TrialError as error:
        return str(error)
    finally:
        end_all([process])
    return None if process.process.returncode == 0 else process.words()


@flow(name="collaborate", flow_run_name="{folder}", validate_parameters=False)
def collaborate(folder: str, limit: float = 1800.0) -> dict[str, Any]:
    """Run a trial to its end and return what the student party has: release, cost, and where the answers are.

    Raises TrialError when the guardian or the student party failed, in its own words. Teacher parties that were left
    out are only mentioned.
    """
    configs = configs_in(Path(folder))
    parties = [read_party(config) for config in configs]
    names = [config.parent.name for config in configs]
    runner = ThreadPoolTaskRunner(max_workers=len(configs))
    failures = _attend_all.with_options(task_runner=runner)(names, [str(config) for config in configs], limit)
    logger = get_run_logger()
    for name, party in zip(names, parties, strict=True):
        if name in failures and party.role == "teacher":
            logger.warning("%s: %s", name, failures[name])
    needed = [name for name, party in zip(names, parties, strict=True) if name in failures and party.role != "teacher"]
    if needed:
        needed.sort(key=lambda name: "ended the session" in failures[name])
        raise TrialError(f"{needed[0]}: {failures[needed[0]]}")
    student = next(party for party in parties if party.role == "student")
    about = stored_answers(student)
    assert about is not None
    return {"answers": str(student.answers), **about}


@flow(name="parties", validate_parameters=False)
def _attend_all(names: list[str], configs: list[str], limit: float) -> dict[str, str]:
    futures = {name: attend.submit(name, config, limit) for name, config in zip(names, configs, strict=True)}
    words = {name: future.result() for name, future in futures.items()}
    return {name: said for name, said in words.items() if said is not None}
