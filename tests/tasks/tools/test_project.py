"""`terrine init`: a project in a new folder."""

import re
import shutil
import subprocess
import sys
from importlib.metadata import PackagePath
from types import SimpleNamespace

import pytest

from tasks.config.presets import presets
from tasks.tools import project
from tasks.tools.project import create_project
from terrine.errors import SettingError
from tests.tasks.reports.test_pages_in_a_browser import browse


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    folder = tmp_path_factory.mktemp("projects") / "clinic"
    (folder / "data" / "private").mkdir(parents=True)  # as where zones are volumes of a container
    create_project(folder)
    return folder


def test_a_project_has_parameters_presets_and_git_and_dvc_that_keep_private_data_out(fresh, pytestconfig):
    assert {preset.name for preset in presets(fresh)} >= {"terrine-digits", "your-own-images"}
    assert (fresh / "dvc.yaml").read_text() == (pytestconfig.rootpath / "dvc.yaml").read_text()
    assert (fresh / ".dvc" / "config").read_text() == (pytestconfig.rootpath / ".dvc" / "config").read_text()
    secret = fresh / "data" / "private" / "secret"
    secret.mkdir(parents=True)
    (secret / "patient.npy").write_text("x")
    (fresh / "experiments" / "terrine-digits-0123abcd.yaml").write_text("x")
    listed = ["git", "ls-files", "--others", "--exclude-standard"]
    seen = subprocess.run(listed, cwd=fresh, capture_output=True, text=True, check=True).stdout
    assert seen == ""
    log = subprocess.run(["git", "log", "--format=%s", "--name-only"], cwd=fresh, capture_output=True, text=True)
    assert log.stdout.startswith("terrine init\n")
    assert {"README.md", "dvc.yaml", "params.yaml", ".dvc/config", ".dvc/plots.html"} <= set(log.stdout.splitlines())
    assert not subprocess.run(["git", "diff", "HEAD"], cwd=fresh, capture_output=True).stdout


def test_plots_of_two_revisions_are_drawn_without_a_network(fresh, tmp_path):
    """A browser lays out the page that `dvc plots diff` writes: a line and five bars for each revision."""
    fresh = shutil.copytree(fresh, tmp_path / "plots")
    pipeline = "plots: [{curve.csv: {x: answered, y: epsilon}}, {bars.csv: {x: n, y: class, template: bar_horizontal}}]"
    (fresh / "dvc.yaml").write_text(pipeline)
    for factor in (1, 2):
        rows = [f"{number},{factor * number}" for number in range(1, 6)]
        (fresh / "curve.csv").write_text("\n".join(["answered,epsilon", *rows]))
        (fresh / "bars.csv").write_text("\n".join(["class,n", *rows]))
        subprocess.run(["git", "add", "--all"], cwd=fresh, check=True)
        author = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
        subprocess.run(["git", *author, "commit", "--quiet", "--message", "plots"], cwd=fresh, check=True)
    arguments = ["plots", "diff", "HEAD~1", "HEAD", "--out", "page"]
    subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=fresh, check=True, capture_output=True)
    page = fresh / "page" / "index.html"
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", page.read_text())
    drawn = re.sub(r"(?s)<script.*?</script>", "", browse(tmp_path, "--dump-dom", page.as_uri()).stdout)
    lines = [line.split() for line in re.findall(r'<polyline[^>]* points="([^"]+)"', drawn)]
    assert [len(line) for line in lines] == [5, 5]
    assert {line[0] for line in lines} >= {"90,310"}  # the smallest values, at the lower left
    assert len(re.findall(r'<rect x="90" [^>]*height="16"', drawn)) == 10


def test_a_project_of_an_earlier_version_gets_what_it_lacks_and_keeps_what_is_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(project, "_call", lambda *command: (tmp_path / "clinic" / ".dvc").mkdir(exist_ok=True))
    folder = tmp_path / "clinic"
    create_project(folder)
    (folder / "params.yaml").write_text("run: mine")
    (folder / "dvc.yaml").write_text("of an earlier version")
    (folder / "experiments" / "terrine-blood.yaml").unlink()
    assert create_project(folder) == ["experiments/terrine-blood.yaml"]
    assert (folder / "params.yaml").read_text() == "run: mine"
    assert (folder / "dvc.yaml").read_text() != "of an earlier version"
    assert create_project(folder) == []


def test_a_folder_with_other_things_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(SettingError, match="is neither empty nor a project"):
        create_project(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_pip_laid_into_a_folder_of_its_own_is_found_beside_the_code(tmp_path, monkeypatch):
    """Of `pip install --target`, the list of files names other places."""
    listed = PackagePath("../../share/terrine/params.yaml")
    listed.dist = SimpleNamespace(locate_file=lambda path: tmp_path / "target" / path)
    monkeypatch.setattr(project, "files", lambda _: [listed])
    monkeypatch.setattr(project, "REPOSITORY", tmp_path / "target")
    with pytest.raises(SettingError, match="The project templates are missing"):
        project.template_folder()
    laid = tmp_path / "target" / "share" / "terrine"
    laid.mkdir(parents=True)
    (laid / "params.yaml").write_text("run: terrine-digits\n")
    assert project.template_folder() == laid


def test_runs_that_a_clone_keeps_are_not_taken_over(tmp_path):
    kept = tmp_path / "experiments"
    kept.mkdir()
    for name in ("terrine-digits", "clinic-a", "terrine-digits-0123abcd"):
        (kept / f"{name}.yaml").write_text("description: x")
    (kept / ".gitignore").write_text("# Runs with names of their own\nclinic-a.yaml\n")
    assert [path.stem for path in project._presets(tmp_path)] == ["terrine-digits"]
