"""Progress of a stage: its own reports, or else the parts of its fan-out."""

import logging

from flows.cli.audit import with_bar
from tasks.runtime.progress import CURRENT, StageProgress, progress_reporter


def test_a_stage_that_says_how_far_it_is_is_believed_whatever_its_parts_do(tmp_path):
    progress = StageProgress()
    assert progress.fraction is None
    progress.report("average", 0.25)
    with progress.fan_out(4) as one_finished:
        one_finished()
        progress.report("part", 0.9)
        assert progress.fraction == 0.25
    progress.begin("teach")
    assert progress.fraction is None


def test_parts_count_when_they_are_finished_or_say_how_far_they_are():
    progress = StageProgress()
    with progress.fan_out(4) as one_finished:
        assert progress.fraction == 0
        progress.report("second", 1.0)
        progress.report("third", 0.5)
        assert progress.fraction == 0.375
        one_finished()
        one_finished()
        assert progress.fraction == 0.5
    assert progress.fraction is None


def test_a_reporter_outside_a_flow_moves_the_bar_and_writes_a_line(tmp_path, capsys):
    CURRENT.begin("pretrain")
    progress_reporter("small", "pretraining")(0.5, "epoch 1 of 2")
    assert CURRENT.fraction == 0.5
    assert capsys.readouterr().out == "pretraining:  50.0 %  epoch 1 of 2\n"


def test_an_attack_that_nobody_sits_before_says_now_and_then_how_far_it_is(capsys):
    def attack(tell):
        for number in range(1, 5):
            tell(number / 4, f"shadow run {number} of 4")
            progress_reporter("small", "private-features")(1, "features")
        return {"caught": False}

    assert with_bar("shadow runs", attack) == {"caught": False}
    out, err = capsys.readouterr()
    assert not out
    assert err.splitlines() == [
        "shadow runs:  25.0 %  shadow run 1 of 4",
        "shadow runs: 100.0 %  shadow run 4 of 4",
    ]


def test_an_artifact_of_progress_begins_with_the_first_report_and_is_updated(monkeypatch):
    made = []
    monkeypatch.setattr("prefect.get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr("tasks.runtime.progress.in_context", lambda name: True)
    monkeypatch.setattr("prefect.artifacts.create_progress_artifact", lambda **given: made.append(given) or "id")
    monkeypatch.setattr("prefect.artifacts.update_progress_artifact", lambda **given: made.append(given))
    report = progress_reporter("small", "student")
    assert made == []
    report(0.25, "epoch 1 of 4")
    report(1.0, "epoch 4 of 4")
    assert made == [
        {"progress": 25.0, "key": "small-student", "description": "epoch 1 of 4"},
        {"progress": 100.0, "artifact_id": "id", "description": "epoch 4 of 4"},
    ]
