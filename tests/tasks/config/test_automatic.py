"""`aggregation.mechanism: auto`: settings alone decide whether records are summed or teachers vote."""

import pytest

from tasks.config.presets import read_preset, with_assignments


@pytest.mark.parametrize(
    ("assignments", "mechanism", "student"),
    [
        ([], "gradients", "sums"),
        (["aggregation.epsilon=2", "backbone.projection=50", "privacy.moments=0"], "gradients", "sums"),
        (["aggregation.mechanism=gradients", "student.kind=sums"], "gradients", "sums"),
        (["privacy.unit=group"], "histogram", "linear"),
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
            "histogram",
            "linear",
        ),
    ],
)
def test_records_are_summed_where_one_is_protected_and_nothing_asks_for_votes(
    pytestconfig, assignments, mechanism, student
):
    root = pytestconfig.rootpath
    _, params = with_assignments(root, read_preset(root, "your-own-images"), assignments)
    assert (params.aggregation.mechanism, params.student.kind) == (mechanism, student)
    assert params.aggregation.epsilon == (2 if "aggregation.epsilon=2" in assignments else 4)


def test_where_records_are_summed_no_number_of_teachers_keeps_a_small_data_set_from_it(pytestconfig):
    root = pytestconfig.rootpath
    _, params = with_assignments(root, read_preset(root, "your-own-images"), [])
    assert params.partition.teachers == 2
