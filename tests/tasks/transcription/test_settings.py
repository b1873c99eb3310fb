"""The section `transcription`: what it refuses, with the key and the remedy."""

import pytest

from tasks.config.params import validate
from tasks.config.values import merge
from tasks.runtime.run import Run
from tasks.transcription.clients import section
from tasks.transcription.release import check_run
from terrine.errors import BudgetError, SettingError

PUBLIC = {"data": {"public_benchmark": True}, "transcription": {"annotation": {"sigma": 300.0}}}


def params(**changes):
    return validate(merge(PUBLIC, {"transcription": changes}))


def test_a_run_without_the_section_is_no_transcription():
    plain = validate({"data": {"public_benchmark": True}})
    assert plain.transcription is None
    with pytest.raises(SettingError, match="no section transcription"):
        section(plain)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 1}, r"transcription\.batch=1"),
        *(
            ({section: {key: value}}, rf"transcription\.{section}\.{key}={value}")
            for section, bounds in {
                "annotation": {"sigma": -1, "beta": 0, "top_k": 1, "step": 0, "stability": 0},
                "teacher": {"temperature": 0},
                "student": {"learning_rate": 0},
                "generator": {"latent": 0, "width": 1, "entropy": -1},
            }.items()
            for key, value in bounds.items()
        ),
        ({"annotation": {"sigma": 0}}, r"annotation\.sigma=0 guarantees nothing.*noise=none"),
        ({"annotation": {"sigma": None}}, r"annotation\.sigma is missing"),
        ({"annotation": {"epsilon": 1}}, r"annotation\.epsilon=1 has no meaning"),
        ({"noise": "none"}, r"annotation\.sigma=300 contradicts noise=none"),
        ({"protect": "answers"}, r"annotation\.sigma=300 has no meaning"),
        ({"protect": "answers", "annotation": {"sigma": None}}, r"annotation\.epsilon is missing"),
        ({"protect": "labels", "noise": "none", "annotation": {"sigma": None, "epsilon": 1}}, "noise=none does not"),
        ({"teacher": {"architecture": "linear"}}, r"student\.architecture=scattering"),
        ({"teacher": {"architecture": "timm:resnet18"}}, r"teacher\.file"),
        ({"teacher": {"architecture": "else:resnet18", "file": "a.pt"}}, "names no library"),
        ({"teacher": {"file": "a.pt"}, "federated": True}, "one teacher that was trained elsewhere"),
        ({"generator": {"discriminator": "teacher"}, "federated": True}, "needs one teacher"),
        ({"per_task": 3}, "per_task=3 has no meaning"),
        (
            {"student": {"unknown": 1}},
            r"transcription\.student\.unknown is not a setting\. .*Known here: arch",
        ),
        ({"student": {"unknown": {"more": 1}}}, r"transcription\.student\.unknown"),
    ],
)
def test_what_is_impossible_is_refused_with_the_key(changes, message):
    with pytest.raises(SettingError, match=message):
        params(**changes)


@pytest.mark.parametrize(
    "changes",
    [{"noise": "none", "annotation": {"sigma": 0}}, {"generator": {"discriminator": "teacher"}}],
)
def test_what_guarantees_nothing_is_for_public_data_without_a_budget(changes):
    assert params(**changes).transcription.unprotected
    values = merge(PUBLIC, {"transcription": changes, "ledger": {"epsilon": 8}})
    with pytest.raises(SettingError, match="guarantees nothing"):
        validate(values)
    private = {"data": {"public_benchmark": False}, "ledger": {"epsilon": 8, "account": "trial"}}
    with pytest.raises(SettingError, match="guarantees nothing"):
        validate(merge(values, private))


def test_labels_are_protected_one_record_at_a_time():
    with pytest.raises(SettingError, match=r"privacy\.unit=group does not go"):
        validate(
            merge(
                PUBLIC,
                {
                    "privacy": {"unit": "group"},
                    "transcription": {"protect": "labels", "annotation": {"sigma": None, "epsilon": 1}},
                },
            )
        )


def test_a_run_that_cannot_meet_its_budget_is_refused_with_the_sigma_that_would(tmp_path):
    run = Run(tmp_path, "trial", params(annotation={"sigma": 100}, epsilon=10))
    with pytest.raises(BudgetError, match=r"annotation\.sigma to 226\.23 or more"):
        check_run(run)
    check_run(Run(tmp_path, "trial", params(annotation={"sigma": 226.23}, epsilon=10)))


def test_more_classes_than_the_data_have_are_refused(tmp_path):
    run = Run(tmp_path, "trial", params(annotation={"top_k": 11}))
    check_run(run)
    with pytest.raises(SettingError, match="top_k=11, but the data have 10 classes"):
        check_run(run, 10)


def presets_of_transcriptions(root):
    from tasks.config.presets import presets, resolve

    return {preset.name: resolve(root, preset.name) for preset in presets(root) if "transcription" in preset.overrides}


def test_every_preset_meets_its_budget(pytestconfig):
    known = presets_of_transcriptions(pytestconfig.rootpath)
    assert {"dpsd-mnist", "dpsd-many-teachers", "dpsd-label-source", "feddpsd-mnist"} <= known.keys()
    for name, values in known.items():
        check_run(Run(pytestconfig.rootpath, name, values), 10)


PRIVATE_FILE = {
    "transcription": {"teacher": {"file": "a.pt"}},
    "ledger": {"account": "hospital", "epsilon": 30.0},
    "tracking": {"private_metrics": False},
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ledger": {"account": None}}, r"set ledger\.account"),
        ({"ledger": {"epsilon": None}}, r"set .*ledger\.epsilon"),
        ({"transcription": {"noise": "replay"}}, "noise=secure"),
        ({"tracking": {"private_metrics": True}}, r"tracking\.private_metrics=false"),
    ],
)
def test_a_file_is_taken_for_private_whatever_the_dataset_is(changes, message):
    values = merge(PUBLIC, PRIVATE_FILE)
    assert not validate(values).transcription.teacher.anyone_may_know
    with pytest.raises(SettingError, match=message):
        validate(merge(values, changes))
    public = merge(merge(values, changes), {"transcription": {"teacher": {"public": True}}})
    assert validate(public).transcription.teacher.anyone_may_know


def test_a_file_is_never_asked_without_noise_nor_by_the_generator():
    values = merge(PUBLIC, PRIVATE_FILE)
    with pytest.raises(SettingError, match="mechanism with a guarantee"):
        validate(merge(values, {"transcription": {"noise": "none", "annotation": {"sigma": 0}}}))
    with pytest.raises(SettingError, match="a network trained here"):
        validate(merge(values, {"transcription": {"generator": {"discriminator": "teacher"}}}))


def test_an_answer_that_no_64_bits_can_tell_from_certainty_is_refused_before_any_work():
    with pytest.raises(SettingError, match=r"annotation\.epsilon=41"):
        params(protect="answers", annotation={"sigma": None, "epsilon": 41})
