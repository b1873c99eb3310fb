"""Only stages that use changed code run again."""

import sys

import pytest

from tasks.config.presets import resolve
from tasks.pipeline.graph import MAIN
from tasks.runtime import code_digest as code
from tasks.runtime.code_digest import code_digest, write_code
from tasks.runtime.run import Run
from tasks.runtime.stage_graph import PARAMETERS
from tasks.transcription.graph import TRANSCRIPTION
from tests.conftest import REPOSITORY


@pytest.fixture
def run(tmp_path):
    code._digest.cache_clear()
    yield Run(tmp_path, "terrine-digits", resolve(REPOSITORY, "terrine-digits"))
    code._digest.cache_clear()


def test_a_changed_module_or_package_changes_the_stages_that_name_it(run, monkeypatch):
    before = {stage.name: code_digest(run, stage) for stage in MAIN.stages}
    assert len(set(before.values())) == len(before)
    plain = code._digest.__wrapped__
    for changed, expected in (
        ("tasks.pipeline.teach", {"average", "teach"}),
        ("terrine.students", {"aggregate", "student"}),
        ("tasks.reports", {"report"}),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(code, "_digest", lambda name, changed=changed: "new" if name == changed else plain(name))
            after = {stage.name: code_digest(run, stage) for stage in MAIN.stages}
        assert {name for name in before if before[name] != after[name]} == expected, changed


def test_a_file_below_a_package_counts_and_bytecode_does_not(run, tmp_path, monkeypatch):
    folder = tmp_path / "plugin_package"
    (folder / "below").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for name, text in (("below/table.yaml", "a: 1"), ("below/table.yaml", "a: 2"), ("__init__.pyc", "bytes")):
        (folder / name).write_text(text)
        code._digest.cache_clear()
        found.append(code._digest("plugin_package"))
    assert found[0] != found[1] == found[2]
    sys.modules.pop("plugin_package", None)


def test_every_folder_that_a_stage_names_is_there_and_digests_are_files_for_dvc(run):
    for pipeline in (MAIN, TRANSCRIPTION):
        for stage in pipeline.stages:
            code_digest(run, stage)
    write_code(run, MAIN)
    folder = run.folders.private / "code"
    assert {path.name for path in folder.iterdir()} == {stage.name for stage in MAIN.stages} - {PARAMETERS.name}
    written = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    write_code(run, MAIN)
    assert written == {path: path.stat().st_mtime_ns for path in folder.iterdir()}
