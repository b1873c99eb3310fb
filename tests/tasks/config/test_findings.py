"""Several findings in the parameters: what goes with them, and what is asked of mechanisms."""

from typing import Any

import pytest

from tasks.config.params import Params, merge_overrides, validate
from tasks.runtime.release_identity import release_digest
from tasks.runtime.releases import worst_cases
from terrine.data.findings import MEANT_FOR_CLASSES
from terrine.errors import SettingError
from terrine.planning import plan
from terrine.privacy.accounting.gaussian import mu_squared

VALUES: dict[str, Any] = {
    "data": {"name": "npz", "path": "x.npz", "findings": ["edema", "effusion", "mass"]},
    "ledger": {"account": "clinic", "epsilon": 10},
    "queries": {"count": 100},
    "aggregation": {"sigma": 27},
}
OTHER: dict[str, dict[str, Any]] = {
    "partition.kind": {"partition": {"kind": "dirichlet", "alpha": 0.5}},
    "queries.select": {"queries": {"select": "uncertain", "rounds": 2}},
    "queries.rounds": {"queries": {"rounds": 2}},
    "teachers.kind": {"teachers": {"kind": "estimator"}},
    "aggregation.mechanism": {
        "aggregation": {
            "mechanism": "interactive",
            "threshold": 10,
            "sigma1": 9,
            "sigma2": 9,
            "surprise": 10,
            "confidence": 0.5,
        },
        "queries": {"rounds": 1},
    },
    "aggregation.where": {"aggregation": {"where": "parties"}, "privacy": {"units": 9}},
    "student.kind": {"student": {"kind": "forest"}},
    "evaluation.epsilon": {"evaluation": {"epsilon": 1}},
    "evaluation.subgroups": {"evaluation": {"subgroups": "scanners.csv"}},
    "transcription": {"transcription": {"annotation": {"sigma": 3}}},
}
"""One refused value for each setting in the table."""


def with_findings(**sections: Any) -> Params:
    return validate(merge_overrides(VALUES, sections))


@pytest.mark.parametrize("key", MEANT_FOR_CLASSES)
def test_what_is_made_for_classes_is_refused_in_one_sentence(key: str) -> None:
    with pytest.raises(SettingError, match=rf"{key}.* does not support data.findings") as refused:
        with_findings(**OTHER[key])
    assert str(refused.value).count("\n") == 0


def test_mechanisms_know_how_many_findings_there_are_and_a_bound_without_them_is_refused() -> None:
    params = with_findings(aggregation={"findings_bound": 1})
    assert (params.aggregation.findings, params.aggregation.moved) == (3, 2)
    assert validate(params.model_dump(mode="json")).aggregation == params.aggregation
    assert validate({}).aggregation.findings == 1
    defaults = {name: section for name, section in VALUES.items() if name != "aggregation"}
    assert validate(defaults).aggregation.findings == 3
    assert validate({"aggregation": {"sigma": 27, "findings": 5}}).aggregation.findings == 1
    sums = {"aggregation": {"mechanism": "moments", "findings_bound": 1}, "student": {"kind": "sums"}}
    for values, why in (
        ({"aggregation": {"findings_bound": 1, "sigma": 27}}, "is for teachers that vote on several findings"),
        (VALUES | sums, r"aggregation\.mechanism=moments adds up records .*aggregation\.mechanism=histogram"),
    ):
        with pytest.raises(SettingError, match=why):
            validate(values)


def test_another_bound_or_other_findings_are_another_release() -> None:
    alone = release_digest(with_findings())
    assert release_digest(with_findings(aggregation={"findings_bound": 1})) != alone
    assert release_digest(with_findings(data={"findings": ["edema", "effusion"]})) != alone


def test_what_is_reserved_is_for_all_questions_or_as_many_as_one_unit_moves() -> None:
    def reserved(**aggregation: Any) -> float:
        params = with_findings(aggregation={"sigma": 200, "epsilon": 10, **aggregation})
        return mu_squared(worst_cases(params)["answers"])

    assert reserved() == pytest.approx(100 * 3 * 2 / 200**2)
    assert reserved(findings_bound=1) == pytest.approx(100 * 2 * 2 / 200**2)
    assert reserved(findings_bound=2) == pytest.approx(reserved())


@pytest.mark.parametrize("moved", [1, 4, 10])
def test_noise_is_planned_for_the_answers_that_one_unit_moves(moved: int) -> None:
    params = with_findings(data={"findings": [f"f{n}" for n in range(10)]})
    found = plan(20_000, classes=10, epsilon=4, delta=1e-5, queries=100, teachers=150, moved=moved)
    mechanism = params.aggregation.model_copy(
        update={"sigma": found.sigma, "findings_bound": None if moved == 10 else max(1, moved // 2), "epsilon": 4}
    )
    if moved > 1:
        assert mechanism.moved == moved
        assert mechanism.certain(1000, 4, 1e-5) == 1000
        quieter = mechanism.model_copy(update={"sigma": 0.999 * found.sigma})
        assert quieter.certain(1000, 4, 1e-5) < 1000
    assert found.signal == pytest.approx(plan(20_000, classes=moved, epsilon=4, delta=1e-5, teachers=150).signal)
