"""The public names: they are there, they say what they are, and importing the package costs nothing."""

import inspect
import subprocess
import sys

import pytest

import terrine as tr
from terrine.aggregation.mechanism import MECHANISMS
from terrine.data.partition import PARTITIONS
from terrine.data.source import SOURCES
from terrine.models.architecture import ARCHITECTURES
from terrine.students.student import STUDENTS
from terrine.teachers.base import TEACHERS


def _untyped(function):
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.annotation is p.empty and p.name not in ("self", "cls")]
    return names + ([] if "return" in function.__annotations__ else ["what it returns"])


@pytest.mark.parametrize("name", tr.__all__)
def test_a_public_name_resolves_says_what_it_is_and_is_typed(name):
    value = getattr(tr, name)
    assert value.__name__ == name
    assert inspect.getdoc(value)
    own = (
        [f for key, f in vars(value).items() if inspect.isfunction(f) and not key.startswith("_")]
        if inspect.isclass(value)
        else [value]
    )
    assert [(f.__qualname__, _untyped(f)) for f in own if _untyped(f)] == []


@pytest.mark.parametrize("kinds", [ARCHITECTURES, MECHANISMS, PARTITIONS, SOURCES, STUDENTS, TEACHERS])
def test_every_kind_of_terrine_is_a_public_name(kinds):
    own = {kinds.of(name) for name in kinds.names() if kinds.of(name).__module__.startswith("terrine.")}
    assert own
    assert {kind.__name__ for kind in own} <= set(tr.__all__)
    assert all(getattr(tr, kind.__name__) is kind for kind in own)


def test_importing_the_package_imports_nothing_that_takes_time():
    code = "import sys, terrine; print(sorted({'numpy', 'torch', 'pydantic'} & set(sys.modules)), dir(terrine))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith("[]")
    assert "'LinearTeachers'" in said


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'LinearTeacher'"):
        _ = tr.LinearTeacher
