"""A small collaboration to propose, in which nobody's records are there to be read."""

import pytest
import yaml

from tasks.parties.agreement.propose import Wish, propose

pytest.register_assert_rewrite("tests.party_kills", "tests.party_releases")

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
    "guardian": ("trust", "127.0.0.1:7801"),
    "student": ("uni", "h:7802"),
    "class_names": ["ill", "well"],
}


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
        return propose(folder, "own", assignments, Wish(**(WISH | changes)))[0]

    return make


@pytest.fixture(scope="module")
def proposal(project, proposed):
    return proposed(project / "proposal")
