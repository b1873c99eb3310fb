"""The wheel by itself, with the packages it asks for and no others: the first example of the docs runs."""

import functools
import importlib.metadata
import os
import subprocess
import sys
import zipfile
from email.parser import HeaderParser

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tasks.runtime.store import write_json
from tasks.serving.pages import write_pages
from terrine.deployment.signature import public_pem
from tests.conftest import REPOSITORY
from tests.student_folders import make_statement, make_student

SOURCE = (
    *("terrine", "tasks", "flows", "experiments", "*.toml", "README.md", "LICENSE"),
    *("params.yaml", "prefect.yaml", ".dvcignore", ".gitignore", ".dvc/config", ".dvc/plots.html", "data/README.md"),
)
WITHOUT = "import sys; sys.modules.update(dict.fromkeys({absent!r}))\n"
"""Hide packages that an empty environment would not have."""

EXAMPLE = """
import doctest, terrine
assert terrine.__file__.startswith({wheel!r}), terrine.__file__
flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
failed, tried = doctest.testfile({page!r}, module_relative=False, optionflags=flags)
print(tried, "tried,", failed, "failed")
"""
COMMAND = """
sys.argv = ["terrine", *{arguments!r}]
from flows.__main__ import main
main()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The folder that the wheel of this very code is unpacked into."""
    folder = tmp_path_factory.mktemp("wheel")
    build = (
        "import sys; from setuptools.build_meta import build_wheel;"
        f"sys.argv[1:] = []; print(build_wheel({str(folder)!r}))"
    )
    source = folder / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *SOURCE],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for name in listed:
        if (REPOSITORY / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((REPOSITORY / name).read_bytes())
    said = subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(folder / said.stdout.split()[-1]) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def brought_by(requirements):
    """The distributions that an environment holds where these are installed, by their names."""
    found, waiting = set(), [Requirement(text) for text in requirements]
    while waiting:
        wanted = waiting.pop()
        if wanted.marker is not None and not any(
            wanted.marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)
        ):
            continue
        name = canonicalize_name(wanted.name)
        if name in found:
            continue
        try:
            queried = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
        waiting.extend(Requirement(text) for text in queried)
    return found


installed = functools.cache(importlib.metadata.packages_distributions)


@functools.cache
def absent_without(wheel, extras=()):
    """The top-level packages that are installed here and that the wheel with these extras does not bring."""
    about = HeaderParser().parsestr(next(wheel.glob("terrine-*.dist-info/METADATA")).read_text(encoding="utf-8"))
    queried = [Requirement(text) for text in about.get_all("Requires-Dist")]
    own = [r for r in queried if r.marker is None or any(r.marker.evaluate({"extra": extra}) for extra in extras)]
    for requirement in own:
        requirement.marker = None
    brought = brought_by(map(str, own))
    places = installed()
    return {
        package
        for package, distributions in places.items()
        if not any(canonicalize_name(name) in brought for name in distributions)
    } - {"terrine", "flows", "tasks"}


def run(wheel, folder, absent, code):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(absent=absent) + code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_the_first_example_of_the_docs_runs_with_what_the_wheel_alone_brings(wheel, tmp_path):
    absent = absent_without(wheel)
    assert {"torchvision", "timm", "pandas", "PIL", "prefect", "mlflow", "dvc", "yaml", "typer"} <= absent
    assert not {"torch", "numpy", "sklearn", "pydantic", "sqlalchemy"} & absent
    page = str(REPOSITORY / "docs" / "library.md")
    said = run(wheel, tmp_path, absent | {"tasks", "flows"}, EXAMPLE.format(wheel=str(wheel), page=page))
    assert said.stdout.endswith("11 tried, 0 failed\n"), said.stdout + said.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger"]


def test_the_wheel_has_the_schema_of_statements_and_the_files_of_airlock_kits(wheel):
    for folder in ("terrine/privacy/schemas", "tasks/desk/kit"):
        names = {path.name for path in (REPOSITORY / folder).iterdir() if path.is_file()}
        assert {path.name for path in (wheel / folder).iterdir()} == names
        assert len(names) in (1, 5)


def test_the_wheel_says_that_it_is_typed(wheel):
    assert (wheel / "terrine" / "py.typed").is_file()
    assert (wheel / "terrine" / "__init__.pyi").is_file()


@pytest.mark.parametrize(
    ("extras", "arguments", "said"),
    [
        ((), ["presets"], "This and other commands need the package typer, which is not installed: pip install "
                          "'terrine[pipeline]'."),
        (("serve",), ["serve", "--help"], None),
        (("parties",), ["party", "--help"], None),
        (("pipeline",), ["params", "data.name"], None),
    ],
)  # fmt: skip
def test_a_command_says_which_extra_it_needs_and_works_with_it(wheel, tmp_path, extras, arguments, said):
    result = run(wheel, tmp_path, absent_without(wheel, extras), COMMAND.format(arguments=arguments))
    assert result.returncode == (0 if said is None else 1), result.stderr
    if said is not None:
        assert result.stderr.strip() == said


def test_who_receives_a_release_checks_it_with_what_its_extra_brings(wheel, tmp_path):
    release, key = tmp_path / "release", Ed25519PrivateKey.generate()
    write_json(release / "privacy.json", make_statement(make_student(release / "student")))
    write_pages(release, ["fr"], key)
    (tmp_path / "site.pem").write_bytes(public_pem(key.public_key()))
    verify = COMMAND.format(arguments=["verify", "release", "--key", "site.pem"])
    absent = absent_without(wheel, ("statement",))
    assert {"mlflow", "dvc", "prefect", "PIL", "pandas"} <= absent
    said = run(wheel, tmp_path, absent, verify)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "All checks passed." in said.stdout
    (release / "statement-fr.html").write_text("<p>")
    said = run(wheel, tmp_path, absent, verify)
    assert (said.returncode, said.stderr) == (1, "")
    assert "statement-fr.html  It differs from the signed one" in said.stdout


@pytest.mark.slow
def test_a_project_begins_with_what_the_wheel_brings(wheel, tmp_path):
    arguments = ["init", str(tmp_path / "clinic")]
    said = run(wheel, tmp_path, absent_without(wheel, ("pipeline",)), COMMAND.format(arguments=arguments))
    assert said.returncode == 0, said.stderr
    assert "terrine run" in said.stdout
    for name in ("params.yaml", "prefect.yaml", ".dvcignore", "data/README.md", "experiments/your-own-images.yaml"):
        assert (tmp_path / "clinic" / name).read_bytes() == (REPOSITORY / name).read_bytes(), name
    assert (tmp_path / "clinic" / "dvc.yaml").read_bytes() == (REPOSITORY / "dvc.yaml").read_bytes()


NEEDS = {
    "tr.load_dataset('folder', path='images')": "PIL",
    "import terrine.data.dicom_images": "pydicom",
    "import pathlib, terrine.data.sources.nifti as nifti; nifti.volume_shape(pathlib.Path('a.nii'))": "nibabel",
    "tr.load_dataset('table', path='table.csv', target='class', public_fraction=0.2)": "pandas",
    "tr.load_dataset('bloodmnist')": "medmnist",
    "tr.load_dataset('mnist')": "torchvision",
    "tr.Timm(architecture='resnet18').build(1, 28, 0)": "timm",
}


def test_what_needs_more_than_the_science_names_the_extra(wheel, tmp_path):
    # All in one process: each would load the science for seconds.
    (tmp_path / "images").mkdir()
    (tmp_path / "table.csv").write_text("age,class\n30,a\n40,b\n")
    lines = ["import terrine as tr"]
    for code in NEEDS:
        lines += ["try:", f"    {code}", "except tr.TerrineError as error:", "    print(error)"]
    said = run(wheel, tmp_path, absent_without(wheel), "\n".join(lines))
    answers = said.stdout.splitlines()
    assert len(answers) == len(NEEDS), said
    for answer, package in zip(answers, NEEDS.values(), strict=True):
        extra = "medical" if package in ("pydicom", "nibabel") else "pipeline"
        assert f"need the package {package}, which is not installed: pip install 'terrine[{extra}]'." in answer, said
