"""A small collaboration to propose, without any party's records."""

import shutil

import pytest
import yaml

from tasks.collaboration.accept import accept, candidate
from tasks.collaboration.propose import ProposalOptions, propose
from tasks.parties.config import read_party
from tasks.parties.keys import create_key

pytest.register_assert_rewrite("tests.party_trials")

from tests.party_trials import SEED  # noqa: E402  # after its assertions are rewritten

PRESET = {
    "data": {"name": "folder", "path": "nowhere", "size": 8, "channels": 1},
    "privacy": {"moments": 0.05},
    "partition": {"teachers": "auto"},
    "queries": {"count": 60, "batch": 12, "sources": {"gaussian": 1, "dead_leaves": 1}},
    "backbone": {"projection": 30, "invariance": False},
    "teachers": {"optimiser": "ridge"},
    "aggregation": {"sigma": "auto", "epsilon": 6},
    "ledger": {"account": "clinic", "epsilon": 8},
}
WISH = {
    "teachers": {"south": 9, "north": 12},
    "guardian": "trust",
    "student": "uni",
    "class_names": ["ill", "well"],
}


def lines(project):
    """Keys of all parties, in folders that parties may copy."""
    places = {"trust": "https://127.0.0.1:7801", "uni": "https://h:7802"}
    return [create_key(project / "keys" / name, name, places.get(name)) for name in ("south", "north", "trust", "uni")]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with a preset of private data that are not there."""
    root = tmp_path_factory.mktemp("project")
    (root / "experiments").mkdir()
    (root / "params.yaml").write_text("run: own\n")
    (root / "dvc.yaml").write_text("stages: {}\n")
    (root / "experiments" / "own.yaml").write_text(yaml.safe_dump(PRESET))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERRINE_ROOT", str(root))
        yield root


@pytest.fixture(scope="module")
def proposed(project):
    """Propose a small collaboration into a folder."""

    def make(folder, *assignments, **changes):
        return propose(folder, "own", assignments, ProposalOptions(lines(project), **(WISH | changes)))[0]

    return make


@pytest.fixture(scope="module")
def proposal(project, proposed):
    return proposed(project / "proposal")


def accept_all(proposal, project, folder, records):
    """Have all parties accept in folders of their own, and return the teacher parties' settings by name.

    The guardian's noise is replayed. `records` returns the file of a teacher party's records.
    """
    for name, role in proposal.terms.roles().items():
        shutil.copytree(project / "keys" / name, folder / name)
        data = {"data": records(name)} if role == "teacher" else {}
        party = candidate(proposal, name, folder=folder / name, **data)
        assert not party.check_data()[1].refusals
        accept(party)
    path = folder / "trust" / "party.yaml"
    changed = {"replay_seed": SEED, "ledger": {"account": "trial", "epsilon": None}}
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changed))
    return {name: read_party(folder / name / "party.yaml") for name in proposal.terms.teachers}
