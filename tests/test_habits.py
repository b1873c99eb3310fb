"""Values repeated in several files of the project agree."""

import re
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.tables import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_is_the_same_everywhere():
    cited = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert (cited["version"], cited["license"]) == (PROJECT["version"], PROJECT["license"])


def asked(extra):
    """The requirements of an extra, those of the extras that it names among them."""
    for requirement in map(Requirement, PROJECT["optional-dependencies"][extra]):
        if requirement.name == PROJECT["name"]:
            for inner in sorted(requirement.extras):
                yield from asked(inner)
        else:
            yield requirement


@pytest.mark.parametrize(
    "requirement", [*map(Requirement, PROJECT["dependencies"]), *asked("dev")], ids=lambda requirement: requirement.name
)
def test_constraints_name_one_version_that_pyproject_allows(requirement):
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    versions = {canonicalize_name(name): version for name, version in pinned.items()}
    assert versions[canonicalize_name(requirement.name)] in requirement.specifier


def test_workflows_try_every_python_that_is_promised():
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
    tried = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert tried[0] == re.sub(r"^>=", "", PROJECT["requires-python"])
