"""The table of mutants fits today's code: every patch applies, every detector is there, every mutant was caught."""

import json

import pytest

from benchmarks.mutants import (
    AUDITS,
    HARNESS,
    PRIVACY_TESTS,
    REPOSITORY,
    RESULTS,
    Broken,
    Copy,
    Edit,
    Mutant,
    caught,
    check_detectors,
    mutants,
    stored,
)


@pytest.fixture(scope="module")
def table():
    return mutants()


def test_a_patch_applies_to_todays_code_and_changes_what_python_reads(table):
    for mutant in table:
        for path, text in mutant.patched(REPOSITORY).items():
            before = path.read_text(encoding="utf-8")
            assert text != before, mutant.name
            if path.suffix == ".py":
                compile(text, f"{path} under {mutant.name}", "exec")


@pytest.mark.parametrize("find", ["not in the file", "return"])
def test_a_patch_whose_text_is_not_there_exactly_once_is_refused(find):
    edit = Edit("terrine/privacy/accounting/events.py", find, "something else")
    with pytest.raises(ValueError, match="must be there once"):
        Mutant("a name", "a kind", "a defect", (edit,), ("tests",)).patched(REPOSITORY)


def test_there_are_enough_of_them_each_once(table):
    assert len(table) >= 30
    assert len({mutant.name for mutant in table}) == len(table)
    assert len({str(mutant.edits) for mutant in table}) == len(table)


def test_what_a_mutant_names_is_a_part_of_what_the_table_claims(table):
    for mutant in table:
        assert mutant.tests, mutant.name
        assert set(mutant.audit) <= set(AUDITS), mutant.name
        for named, whole in ((mutant.tests, PRIVACY_TESTS), (mutant.harness, HARNESS)):
            for test in named:
                file, *function = test.split("[")[0].split("::")
                assert file.startswith(whole), mutant.name
                source = (REPOSITORY / file).read_text(encoding="utf-8")
                assert all(f"def {name}(" in source for name in function), test


def test_every_detector_is_there():
    assert all((REPOSITORY / path).exists() for path in (*PRIVACY_TESTS, *HARNESS))


def test_every_mutant_was_tried_as_it_is_today_and_caught(table):
    known = stored()
    assert set(known) == {mutant.name for mutant in table} == set(json.loads(RESULTS.read_text(encoding="utf-8")))
    assert all(caught(found) for found in known.values())


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of a repository that is one module and its test."""
    monkeypatch.setattr(Copy, "__init__", lambda self, root: self.__dict__.update(root=root, _scratch=root / "scratch"))
    (tmp_path / "scratch").mkdir()
    (tmp_path / "adding.py").write_text("def total(a, b):\n    return a + b\n")
    test = "from adding import total\n\n\ndef test_it_adds():\n    assert total(2, 1) == 3\n"
    (tmp_path / "test_adding.py").write_text(test)
    return Copy(tmp_path)


def minus(replace: str) -> Mutant:
    return Mutant("minus", "sum", "a difference", (Edit("adding.py", "a + b", replace),), ("test_adding.py",))


def test_a_mutant_is_caught_by_the_test_that_fails_and_taken_out_again(copy):
    assert copy.catches(["test_adding.py"]) is None
    before = copy.put_in(minus("a - b"))
    assert copy.catches(["test_adding.py"]) == "test_adding.py::test_it_adds"
    copy.write(before)
    assert copy.catches(["test_adding.py"]) is None


def test_a_patch_that_python_does_not_take_counts_as_nothing(copy):
    with pytest.raises(SyntaxError):
        copy.put_in(minus("a + b)"))
    before = copy.put_in(minus("unheard + of"))
    with pytest.raises(Broken, match="nonsense"):
        copy.catches(["test_adding.py"])
    copy.write(before)
    copy.put_in(
        Mutant("no such module", "sum", "", (Edit("adding.py", "def total", "import unheard\n\n\ndef total"),), ())
    )
    with pytest.raises(Broken, match="pytest ended with 2"):
        copy.catches(["test_adding.py"])


def test_detectors_that_complain_without_a_mutant_are_found_out(copy):
    check_detectors(copy, [minus("a - b")])
    copy.put_in(minus("a * b"))
    with pytest.raises(Broken, match=r"Without any mutant, test_adding\.py::test_it_adds fails"):
        check_detectors(copy, [minus("a - b")])
