"""Release of moments of a run's private images, so that predictions do not depend on the rest of a batch.

`aggregate` releases them before the answers (`terrine.models.released_statistics`, `terrine.privacy.noised_sum`) at a
cost of the share `privacy.moments` of the budget. Moments have their own release ID, and runs with the same backbone
share it. The resulting statistics are stored with the answers and the student.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tasks.artefacts.images import read_backbone
from tasks.artefacts.records import protected_units, read_dataset
from tasks.runtime.accounts import release_at_price, site_key
from tasks.runtime.release_identity import record_data_change
from tasks.runtime.releases import identity_in_ledger, make_noise, moments_mechanism
from tasks.runtime.run import Run
from terrine.data.content_digest import digest_of_arrays
from terrine.models.backbone import Backbone
from terrine.models.released_statistics import bound_for, statistics_from, unit_vectors
from terrine.models.wavelets import ScatteringNetwork
from terrine.privacy.ledger.ledger import StoredRelease
from terrine.privacy.noised_sum import ClippedMean


def release_moments(run: Run) -> StoredRelease | None:
    """Release the run's moments through the ledger, or return the stored ones; None without `privacy.moments`."""
    mechanism = moments_mechanism(run.params)
    if mechanism is None:
        return None
    dataset = read_dataset(run.folders)
    units = protected_units(run, dataset)
    backbone, noise = read_backbone(run.folders), make_noise(run, "moments")
    bound = _bound(run, backbone, mechanism)
    # Labels are not included: tasks with other labels share the release.
    seen = {"images": (dataset.train_images, "|u1"), "units": (units, "<i8")}
    inputs = {"images": digest_of_arrays("terrine moments 1", seen, site_key(run))}  # regardless of the partition

    def draw() -> dict[str, np.ndarray]:
        return {"sums": mechanism.release(unit_vectors(backbone, dataset.train_images, units, bound), noise)}

    release = release_at_price(run, identity_in_ledger(run, "moments"), mechanism.event, noise, draw, inputs)
    record_data_change(run, "moments", release, inputs)
    return release


def compute_statistics(run: Run, release: StoredRelease) -> dict[str, np.ndarray]:
    """Compute the statistics from released moments."""
    mechanism = moments_mechanism(run.params)
    assert mechanism is not None
    backbone = read_backbone(run.folders)
    mean = mechanism.mean(release.arrays["sums"])
    return statistics_from(backbone, *mean, _bound(run, backbone, mechanism))


def _bound(run: Run, backbone: Backbone, mechanism: ClippedMean) -> float:
    """Return the bound on the vectors, computed only from settings that are part of the release ID."""
    return bound_for(backbone, run.params.privacy.units, mechanism.noise_multiplier)


def describe_moments(run: Run) -> dict[str, Any]:
    """Return the statement's field about moments."""
    mechanism = moments_mechanism(run.params)
    if mechanism is None:
        return {}
    return {"moments": {"numbers": count_moments(run), "noise_multiplier": mechanism.noise_multiplier}}


def count_moments(run: Run) -> int:
    """Return the number of noisy values in the moments, including the number of units."""
    if not run.params.privacy.moments:
        return 0
    network = read_backbone(run.folders).network
    assert isinstance(network, ScatteringNetwork)
    coefficients = network.standardise.num_features
    return coefficients + coefficients // math.prod(network.grid) + 1
