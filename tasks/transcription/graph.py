"""The stage graph of a transcription (docs/dpsd.md)."""

from __future__ import annotations

from tasks.config.params import Params
from tasks.pipeline.graph import MAIN
from tasks.runtime.stage_graph import PARAMETERS, Pipeline, Stage


def _clients_are_spread(params: Params) -> bool:
    return params.transcription is not None and params.transcription.per_task is not None


TRANSCRIPTION = Pipeline(
    result="tasks.transcription.report:result",
    check="tasks.transcription.teach:check_before_work",
    stages=(
        PARAMETERS,
        MAIN["dataset"],
        Stage(
            "partition",
            comment="one teacher with all records, or disjoint records for each client",
            tasks="tasks.transcription.teach:deal_clients",
            code="data transcription",
            settings="seed partition privacy transcription",
            needs="private/dataset",
            makes="private/partition",
        ),
        Stage(
            "labels",
            comment="the records' labels; with protect=labels they are randomised and the ledger is charged",
            tasks="tasks.transcription.teach:respond",
            code="privacy transcription",
            settings="seed transcription.protect transcription.noise transcription.annotation.epsilon"
            " transcription.delta",
            needs="private/dataset",
            makes="private/labels",
            releases="tasks.transcription.release:propose_labels",
        ),
        Stage(
            "start",
            comment="public: initial weights of generator and student backbone",
            tasks="tasks.transcription.clients:prepare_start",
            code="transcription models",
            settings="seed data.size data.channels transcription.generator transcription.student",
            makes="public/start",
        ),
        Stage(
            "teach",
            tasks="tasks.transcription.teach:train_clients tasks.transcription.teach:collect_clients",
            code="transcription models",
            settings="seed transcription.teacher transcription.per_task",
            needs="private/dataset private/partition private/labels public/start",
            makes="private/teachers",
            fans_out=_clients_are_spread,
            shared=True,
        ),
        Stage(
            "transcribe",
            comment="reads private, writes release: noise is added here, and the ledger charged",
            tasks="tasks.transcription.session:begin tasks.transcription.session:pose"
            " tasks.transcription.session:contribute tasks.transcription.session:learn"
            " tasks.transcription.session:transcribe_in_process tasks.transcription.session:finish",
            code="transcription models privacy",
            settings="seed transcription privacy about",
            needs="private/dataset private/partition private/labels private/teachers public/start",
            makes="release/annotations release/generator release/student release/privacy.json release/statement.html",
            fans_out=_clients_are_spread,
            releases="tasks.transcription.release:propose_annotations",
        ),
        Stage(
            "evaluate",
            comment="reads the private test split; exact figures stay private",
            tasks="tasks.pipeline.evaluate:evaluate_student tasks.pipeline.figures.tables:write_metrics",
            code="deployment measures",
            settings="student.batch",
            needs="release/student release/privacy.json private/dataset",
            makes="private/evaluation.json release/metrics.json",
        ),
        Stage(
            "report",
            tasks="tasks.transcription.report:write_report tasks.transcription.report:log_run",
            code="tasks/reports",
            settings="tracking",
            needs="release/privacy.json release/generator release/student private/evaluation.json private/teachers",
            makes="private/report.html",
        ),
    ),
)


def pipeline_of(params: Params) -> Pipeline:
    """Return the pipeline that makes a run with these parameters."""
    return MAIN if params.transcription is None else TRANSCRIPTION
