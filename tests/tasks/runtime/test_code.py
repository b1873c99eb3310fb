"""A stage's digest changes with the code it uses, and with no other."""

from dataclasses import replace

import pytest

from tasks.config.params import Params
from tasks.pipeline.graph import MAIN
from tasks.runtime.code import Sources, write_code
from tasks.runtime.run import Run
from tasks.runtime.store import read_json
from terrine.teachers.linear import LinearTeachers

FILES = {
    "__init__.py": "START = 1\n",
    "task.py": """
        from typing import TYPE_CHECKING
        import kitchen.effects
        from kitchen import oven
        from kitchen.pages import render
        if TYPE_CHECKING:
            from kitchen.unused import Menu

        def bake(menu: Menu):
            from kitchen.lazy import later
            later(menu)
            oven.heat(200)

        def serve():
            return render("dinner.html")

        def discover():
            return build("kitchen.kinds")
        """,
    "oven.py": """
        LIMIT = 250
        UNUSED = 0

        def heat(degrees):
            return min(degrees, LIMIT)

        def cool():
            return UNUSED
        """,
    "lazy.py": "from .deep import deepest as later\n",
    "deep.py": "def deepest(menu):\n    return menu\n",
    "effects.py": "print('loaded')\n",
    "pages.py": "def render(name):\n    return name\n",
    "unused.py": "class Menu:\n    pass\n",
    "dinner.html": "{% include 'plate.html' %}\n",
    "plate.html": "plate\n",
    "kinds/__init__.py": "",
    "kinds/soup.py": "NAME = 'soup'\n",
    "kinds/scan.py": "def names():\n    return search(__path__)\n",
}


@pytest.fixture
def kitchen(tmp_path, monkeypatch):
    folder = tmp_path / "kitchen"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.replace("\n        ", "\n"))
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def digest(folder, name="kitchen.task:bake"):
    return Sources(["kitchen"]).digest([name])


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("task.py", "heat(200)", "heat(180)"),
        ("oven.py", "LIMIT = 250", "LIMIT = 230"),
        ("oven.py", "min(degrees", "max(degrees"),
        ("deep.py", "return menu", "return [menu]"),
        ("effects.py", "loaded", "loaded twice"),
    ],
)
def test_what_a_task_reaches_through_imports_counts(kitchen, file, old, new):
    before = digest(kitchen)
    change(kitchen / file, old, new)
    assert digest(kitchen) != before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("oven.py", "UNUSED = 0", "UNUSED = 1"),
        ("task.py", 'render("dinner.html")', 'render("lunch.html")'),
        ("task.py", "    later(menu)", "    # a remark\n\n    later(menu)"),
        ("deep.py", "    return", '    """A remark."""\n    return'),
        ("unused.py", "pass", "size = 3"),
        ("plate.html", "plate", "bowl"),
        ("kinds/soup.py", "soup", "broth"),
    ],
)
def test_what_it_does_not_reach_and_what_is_said_about_code_does_not_count(kitchen, file, old, new):
    before = digest(kitchen)
    change(kitchen / file, old, new)
    assert digest(kitchen) == before


def test_a_definition_that_moves_to_another_file_is_the_same_code(kitchen):
    before = digest(kitchen)
    (kitchen / "deep.py").rename(kitchen / "deeper.py")
    change(kitchen / "lazy.py", ".deep", ".deeper")
    assert digest(kitchen) == before


@pytest.mark.parametrize(
    ("task", "file", "old", "new"),
    [
        ("kitchen.task:serve", "dinner.html", "include", "extends"),
        ("kitchen.task:serve", "plate.html", "plate", "bowl"),
        ("kitchen.task:discover", "kinds/soup.py", "soup", "broth"),
        ("kitchen.kinds.scan:names", "kinds/soup.py", "soup", "broth"),
        ("kitchen.oven", "oven.py", "UNUSED = 0", "UNUSED = 1"),
    ],
)
def test_files_and_modules_that_are_found_by_name_count(kitchen, task, file, old, new):
    before = digest(kitchen, task)
    change(kitchen / file, old, new)
    assert digest(kitchen, task) != before


def test_the_stages_are_apart_and_each_counts_the_kinds_of_the_sections_it_reads(tmp_path, kitchen):
    """Teachers do not know students or reports; a kind of another package counts where its section is read."""
    run = Run(tmp_path, "small", Params())
    write_code(run, MAIN)
    path = run.folders.private / "code.json"
    before, written = read_json(path), path.stat().st_mtime_ns
    assert set(before) == set(MAIN.names) - {"parameters"}
    assert len(set(before.values())) == len(before)
    write_code(run, MAIN)
    assert path.stat().st_mtime_ns == written
    own = type("Own", (LinearTeachers,), {"__module__": "kitchen.oven"})
    write_code(replace(run, params=run.params.model_copy(update={"teachers": own()})), MAIN)
    changed = {stage for stage, value in read_json(path).items() if value != before[stage]}
    assert changed == {"average", "teach", "vote", "aggregate"}
    sources = Sources(["terrine", "tasks"])
    for stage, apart in (
        ("teach", "terrine.students"),
        ("teach", "tasks.reports.pages"),
        ("student", "terrine.teachers"),
    ):
        modules = {module for module, _ in sources.reached(MAIN[stage].tasks.split())}
        assert not [module for module in modules if f"{module}.".startswith(f"{apart}.")], stage


@pytest.mark.parametrize(
    ("section", "stages"),
    [("teachers", {"teach", "vote"}), ("student", {"student", "evaluate"}), ("backbone", {"pretrain"})],
)
def test_the_engine_behind_a_kind_is_code_of_the_stages_that_read_its_section(section, stages):
    engine = {"teachers": "terrine.teachers.linear", "student": "terrine.students.linear"}
    kind = type(getattr(Params(), section))
    modules = {module for module, _ in Sources(["terrine", "tasks"]).reached([f"{kind.__module__}:{kind.__name__}"])}
    assert engine.get(section, "terrine.models.wavelets") in modules
    assert all(section in MAIN[stage].settings for stage in stages)
