"""`aggregation.mechanism`: `auto` chooses by settings only, and a mechanism and its student choose each other."""

from dataclasses import replace

import pytest

from tasks.config.presets import complete, read_preset, resolve, with_assignments
from terrine.errors import SettingError


@pytest.mark.parametrize(
    ("assignments", "mechanism", "student"),
    [
        ([], "gradients", "sums"),
        (["aggregation.epsilon=2", "backbone.projection=50", "privacy.moments=0"], "gradients", "sums"),
        (["aggregation.mechanism=gradients", "student.kind=sums"], "gradients", "sums"),
        (["privacy.unit=group"], "gradients", "sums"),
        (["aggregation.mechanism=histogram"], "histogram", "linear"),
        (["aggregation.sigma=100"], "histogram", "linear"),
        (["partition.teachers=200"], "histogram", "linear"),
        (["aggregation.where=parties", "privacy.units=5000", "privacy.moments=0"], "histogram", "linear"),
        (["student.kind=finetune", "student.trainable=0"], "histogram", "finetune"),
        (["student.statistics=current"], "histogram", "linear"),
        (["teachers.kind=scratch"], "histogram", "linear"),
        (
            [
                "backbone.kind=columns",
                "data.name=table",
                "data.path=t.csv",
                "data.target=y",
                "data.public_fraction=0.2",
            ],
            "gradients",
            "sums",
        ),
    ],
)
def test_units_are_summed_unless_something_asks_for_votes(pytestconfig, assignments, mechanism, student):
    root = pytestconfig.rootpath
    _, params = with_assignments(root, read_preset(root, "your-own-images"), assignments)
    assert (params.aggregation.mechanism, params.student.kind) == (mechanism, student)
    assert params.aggregation.epsilon == (2 if "aggregation.epsilon=2" in assignments else 4)


def test_where_records_are_summed_no_number_of_teachers_keeps_a_small_data_set_from_it(pytestconfig):
    root = pytestconfig.rootpath
    _, params = with_assignments(root, read_preset(root, "your-own-images"), [])
    assert params.partition.teachers == 2


VOTES, SUMS = (
    ["terrine-digits", "terrine-mnist-selected", "pate-mnist", "prom-pate-cifar10", "ttac-private-mnist"],
    ["terrine-mnist-gradients", "terrine-blood-moments"],
)


@pytest.mark.parametrize("preset", [*VOTES, *SUMS, "your-own-images"])
@pytest.mark.parametrize(
    ("assignment", "mechanism", "student"),
    [
        ("aggregation.mechanism=gradients", "gradients", "sums"),
        ("aggregation.mechanism=moments", "moments", "sums"),
        ("student.kind=sums", None, "sums"),
        ("aggregation.mechanism=histogram", "histogram", None),
        ("student.kind=linear", None, "linear"),
    ],
)
def test_one_setting_selects_a_mechanism_together_with_its_student(
    pytestconfig, preset, assignment, mechanism, student
):
    root = pytestconfig.rootpath
    chosen = read_preset(root, preset)
    overrides, params = with_assignments(root, chosen, [assignment])
    found = params.aggregation.mechanism, params.student.kind
    assert mechanism in (found[0], None)
    assert student in (found[1], None)
    assert (params.aggregation.reveals == "sums") == (params.student.kind == "sums")
    # The same two settings together, as benchmarks/reproduce.py and reports print them, are the same run.
    both = [f"aggregation.mechanism={found[0]}", f"student.kind={found[1]}"]
    _, spelled = with_assignments(root, chosen, both)
    assert spelled == params
    # A later choice of the other side turns it over again.
    for back, reveals in (("gradients", "sums"), ("histogram", "histogram")):
        _, turned = with_assignments(root, replace(chosen, overrides=overrides), [f"aggregation.mechanism={back}"])
        assert (turned.aggregation.reveals, turned.student.kind == "sums") == (reveals, reveals == "sums")


@pytest.mark.parametrize("preset", ["terrine-digits", "terrine-mnist-gradients", "your-own-images"])
@pytest.mark.parametrize(
    ("both", "why"),
    [
        (["aggregation.mechanism=gradients", "student.kind=linear"], "learns from answers, not from sums"),
        (["aggregation.mechanism=histogram", "student.kind=sums"], "which answers queries"),
        (["student.kind=sums", "aggregation.mechanism=moments", "student.statistics=current"], "its whole batch"),
    ],
)
def test_settings_that_contradict_one_another_are_refused(pytestconfig, preset, both, why):
    root = pytestconfig.rootpath
    with pytest.raises(SettingError, match=why):
        with_assignments(root, read_preset(root, preset), both)


@pytest.mark.parametrize(("in_the_project", "student"), [("gradients", "sums"), ("histogram", "linear")])
def test_a_mechanism_of_the_project_selects_its_student(tmp_path, in_the_project, student):
    """As `dvc repro` reads it from a short params.yaml, and from one with all settings."""
    sigma = ", sigma: 30" * (student == "linear")
    (tmp_path / "params.yaml").write_text(f"run: plain\naggregation: {{mechanism: {in_the_project}{sigma}}}\n")
    params = resolve(tmp_path, "plain")
    assert (params.aggregation.mechanism, params.student.kind) == (in_the_project, student)
    (tmp_path / "params.yaml").write_text(complete(tmp_path, "plain"))
    assert resolve(tmp_path, "plain") == params
    assert read_preset(tmp_path, "plain").overrides.keys() <= {"aggregation", "student"}


@pytest.mark.parametrize("setting", ["data.group=student", "data.plane=axial", "backbone.stem=pooled"])
def test_a_setting_of_another_type_is_refused_even_if_the_mechanism_is_chosen(pytestconfig, setting):
    root = pytestconfig.rootpath
    with pytest.raises(SettingError, match=f"{setting.split('=')[0]}=.* has no meaning for .*; it belongs to "):
        with_assignments(root, read_preset(root, "your-own-images"), [setting])
