"""The release of a run whose votes or sums parties hold (`aggregation.where: parties`).

`tasks.parties` runs stages of this pipeline on each party's records, so it is called here by name and not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tasks.runtime.accounts import open_account
from tasks.runtime.graph import load
from tasks.runtime.identity import Inputs
from tasks.runtime.run import Run
from terrine.privacy.ledger.ledger import StoredRelease

TERMS, RELEASE = "tasks.parties.release:trial_terms", "tasks.parties.release:release_by_parties"


def release_by_parties(
    run: Run,
    class_names: Sequence[str],
    release_id: str,
    held: Callable[[Mapping[str, int]], Mapping[str, np.ndarray]],
    inputs: Inputs,
) -> StoredRelease:
    """Release through a guardian and a student party, or return what they released before.

    Args:
        run: The run.
        class_names: Names of the classes, which the parties agree on.
        release_id: Identity of the run's answers in the ledger.
        held: Returns what each teacher party holds, from the number of teachers of each.
        inputs: Digests of what is drawn from, remembered with the release.

    Raises:
        TrialError: If a party failed. A further run continues where it ended.
    """
    _, account = open_account(run)  # the guardian opens the ledger itself
    terms = load(TERMS)(run, class_names, release_id)
    release: StoredRelease = load(RELEASE)(run, terms, lambda: held(terms.teachers), account=account, inputs=inputs)
    return release
