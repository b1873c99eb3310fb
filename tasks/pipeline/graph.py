"""The stages of the main pipeline: synthetic images, backbone, teachers, votes, release, student, report."""

from __future__ import annotations

from tasks.config.params import Params
from tasks.runtime.stage_graph import PARAMETERS, Pipeline, Stage

HEAD = """\
# The pipeline of the default run, which params.yaml names. Generated from tasks/pipeline/graph.py:
# `python -m tasks.pipeline.graph > dvc.yaml`. Any other run has a copy of this file in runs/RUN/."""


def _always(_params: Params) -> bool:
    return True


PLOTS = {
    "release/plots/spending.csv": "x: answered, y: epsilon, title: '{run}: ε against answered queries'",
    "release/plots/classes.csv": "x: answers, y: class, template: bar_horizontal, title: '{run}: answers by class'",
    "release/plots/training.csv": "x: step, y: held_out_loss, title: '{run}: loss of the student on held-out answers'",
}

MAIN = Pipeline(
    result="tasks.reports.summary:result",
    is_default=True,
    plots=PLOTS,
    stages=(
        PARAMETERS,
        Stage(
            "dataset",
            tasks="tasks.pipeline.dataset:prepare_dataset",
            code="data",
            settings="seed data",
            makes="private/dataset",
        ),
        Stage(
            "partition",
            tasks="tasks.pipeline.partition:deal_records",
            code="data",
            settings="seed partition privacy",
            needs="private/dataset",
            makes="private/partition",
        ),
        Stage(
            "synthesize",
            tasks="tasks.pipeline.synthesize:draw_shard tasks.pipeline.synthesize:assemble_images",
            code="data synthetic determinism",
            settings="seed data queries.count queries.batch queries.sources pretraining.images",
            makes="public/images",
            fans_out=_always,
        ),
        Stage(
            "pretrain",
            tasks="tasks.pipeline.pretrain:pretrain_backbone",
            code="models pretraining determinism",
            settings="seed backbone pretraining",
            needs="public/images",
            makes="public/backbone",
        ),
        Stage(
            "average",
            comment="teachers learn from one another; private averages get noise here, and the ledger is charged",
            tasks="tasks.artefacts.averages:nothing_averaged tasks.pipeline.average:check_budget"
            " tasks.pipeline.teach:extract_features tasks.pipeline.average:release_centre"
            " tasks.pipeline.average:local_steps tasks.pipeline.average:combine"
            " tasks.pipeline.average:collect_averages",
            code="teachers models aggregation privacy",
            settings="seed teachers aggregation.epsilon aggregation.delta aggregation.noise",
            needs="private/dataset private/partition public/backbone",
            makes="private/average",
            fans_out=_always,
            shared=True,
            releases="tasks.pipeline.approvals:propose_averages",
        ),
        Stage(
            "teach",
            tasks="tasks.pipeline.teach:nothing_taught tasks.pipeline.teach:extract_features"
            " tasks.pipeline.teach:train_group tasks.pipeline.teach:collect_teachers",
            code="teachers models",
            settings="seed teachers aggregation.mechanism",
            needs="private/dataset private/partition private/average public/backbone",
            makes="private/teachers",
            fans_out=_always,
            shared=True,
        ),
        Stage(
            "vote",
            tasks="tasks.pipeline.vote:cast_block tasks.pipeline.vote:collect_votes",
            code="teachers models aggregation",
            settings="teachers.statistics aggregation.mechanism aggregation.findings aggregation.findings_bound",
            needs="private/teachers public/backbone public/images",
            makes="private/votes",
            fans_out=lambda params: params.teachers.inputs == "images",  # heads vote as one product, in seconds
            shared=True,
        ),
        Stage(
            "aggregate",
            comment="reads private, writes release: noise is added here, and the ledger charged",
            tasks="tasks.pipeline.aggregate:release_answers",
            code="aggregation models privacy students",
            settings="seed aggregation collaboration privacy queries.select queries.rounds teachers.statistics about",
            needs="private/votes private/average private/teachers private/dataset private/partition"
            " public/backbone public/images",
            makes="release/answers release/privacy.json release/statement.html private/accounting",
            releases="tasks.pipeline.approvals:propose_answers",
        ),
        Stage(
            "student",
            tasks="tasks.pipeline.student:train_student",
            code="students models deployment aggregation",
            settings="seed student",
            needs="release/answers public/backbone public/images",
            makes="release/student",
        ),
        Stage(
            "evaluate",
            comment="reads the private test split; exact figures stay private, a noised one is charged",
            tasks="tasks.pipeline.evaluate:evaluate_student tasks.pipeline.figures.tables:write_metrics"
            " tasks.pipeline.figures.tables:write_plots",
            code="deployment models measures privacy",
            settings="seed student.statistics student.batch partition.kind evaluation privacy aggregation.delta"
            " aggregation.noise",
            needs="release/student release/answers release/privacy.json private/dataset private/partition"
            " private/accounting public/backbone public/images",
            makes="private/evaluation.json private/errors.json private/party_accuracy.json release/accuracy.json"
            " release/metrics.json release/plots",
            releases="tasks.pipeline.approvals:propose_accuracy",
        ),
        Stage(
            "report",
            tasks="tasks.pipeline.report:write_report tasks.pipeline.mlflow_logging:log_run",
            code="tasks/reports",
            settings="tracking",
            needs="release/accuracy.json release/privacy.json release/answers release/student private/evaluation.json"
            " private/errors.json private/partition private/party_accuracy.json private/accounting"
            " public/images",
            makes="private/report.html",
        ),
    ),
)

if __name__ == "__main__":
    print(MAIN.dvc_yaml(HEAD), end="")
