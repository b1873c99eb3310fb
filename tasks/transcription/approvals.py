"""Releases of a transcription, as proposed for approval (`tasks.runtime.approval`)."""

from __future__ import annotations

from tasks.artefacts.records import read_dataset
from tasks.runtime.approval import Proposal
from tasks.runtime.release_identity import Kind
from tasks.runtime.releases import Release
from tasks.runtime.run import Run
from tasks.transcription.clients import read_manifest, section
from tasks.transcription.release import account_of_run, open_account, release_terms, unit_of


def propose_labels(run: Run) -> Proposal:
    """Propose the release of randomised labels, if labels are protected."""
    return _proposal(run, "labels" if section(run.params).protect == "labels" else None)


def propose_annotations(run: Run) -> Proposal:
    """Propose the release of annotations, unless labels are released instead."""
    if section(run.params).protect == "labels":
        return _proposal(run, None)
    return _proposal(run, "annotations", teachers=read_manifest(run)["digest"])


def _proposal(run: Run, kind: Kind | None, **inputs: str) -> Proposal:
    releases = []
    if kind is not None:
        terms = release_terms(run, read_dataset(run.folders).classes)
        releases = [Release(kind, terms["release_id"], terms["worst_case"])]
    inputs |= {"records": run.folders.dataset_manifest()["fingerprint"]}
    delta = section(run.params).delta
    return Proposal(open_account(run), account_of_run(run), releases, inputs, unit_of(run), delta)
