"""Approval of a release through a form on the Prefect server.

The flow run is suspended, not paused: its process ends, so no process waits for days or holds the run's locks or a slot
of the deployment, and a kill loses nothing. When the form is submitted, a worker starts the flow run again, and
finished stages are skipped. Prefect does not authenticate who submits a form, so the site's key signs the decision,
which the statement mentions. The decision counts only if `release.approvers` is empty or names that key.
"""

from __future__ import annotations

from typing import Literal

from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from pydantic import Field

from tasks.runtime.accounts import site_signing_key, trusted_keys
from tasks.runtime.approval import decide, describe_request, pending
from tasks.runtime.decisions import ApprovalNeeded
from tasks.runtime.run import Run
from terrine.deployment.signature import fingerprint


class ReleaseDecision(RunInput):
    """Decision about a release."""

    decision: Literal["approve", "refuse"] = Field(description="Noise is drawn only after an approval.")
    role: str = Field(min_length=1, description="Your role, for example data steward. The statement publishes it.")
    name: str = Field("", description="Your name, for this server and the site's ledger. It is not published.")
    why: str = Field("", description="Reason, for this server and the site's ledger. It is not published.")


def decide_by_form(run: Run, waiting: str) -> None:
    """Suspend the flow run until the form is submitted, then store its decision.

    Args:
        run: The run, which has asked for an approval.
        waiting: Message of the request, for the error if there is no form.

    Raises:
        ApprovalNeeded: If the site's key may not approve, so that only `terrine release approve` can.
    """
    if fingerprint(site_signing_key(run).public_key()) not in trusted_keys(run):
        raise ApprovalNeeded(waiting)
    ledger, row, _ = pending(run)
    rows = "\n".join(f"- **{name}**: {text}" for name, text in describe_request(run, ledger, row.content))
    form = ReleaseDecision.with_initial_data(description=f"Release of the run {run.name}\n\n{rows}")
    # Each request has its own form, so that a decision about an earlier request does not apply to a later one.
    given = suspend_flow_run(wait_for_input=form, key=row.mac[:16])
    decision: Literal["approved", "refused"] = "approved" if given.decision == "approve" else "refused"
    decide(run, None, decision, role=given.role, name=given.name, why=given.why)
