"""`terrine party propose`: terms and all public inputs of a collaboration, from a preset. No records are read."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.artefacts.images import POOL, read_backbone
from tasks.collaboration.local_training import own_params
from tasks.collaboration.proposal import Proposal, read_proposal, write_proposal
from tasks.config.automatic import replace_auto, resolve_mechanism
from tasks.config.params import AUTO, Params, merge_overrides, parse_assignment, public_parameters, validate
from tasks.config.presets import project_root, project_settings, read_preset
from tasks.config.values import digest
from tasks.parties.config import OwnTeachers
from tasks.parties.keys import PartyLine
from tasks.parties.release import make_terms
from tasks.parties.terms import Teaching, Terms, checked, epsilon_per_unit
from tasks.pipeline import pretrain, synthesize
from tasks.runtime.run import SPLIT_SEED, Run, check_not_transcription
from tasks.runtime.store import atomic_folder
from terrine.aggregation.gnmax import GaussianHistogram
from terrine.data.source import SOURCES
from terrine.errors import SettingError
from terrine.planning import ENOUGH, ENOUGH_OF_SUMS, ample, format_signal, plan, signal, signal_of_sums
from terrine.privacy.accounting.gaussian import mu_of, mu_squared
from terrine.teachers.averaging.averaged import AveragedTeachers
from terrine.teachers.averaging.private import calibrated
from terrine.teachers.averaging.shared import SharedAverages
from terrine.teachers.base import TeacherContext

_PATH = "with each party"


@dataclass(frozen=True)
class ProposalOptions:
    """The content of a proposal besides its preset.

    Attributes:
        lines: The lines that all parties sent (`terrine party key`).
        teachers: Number of teachers of every teacher party.
        guardian: Name of the guardian, whose line has a URL.
        student: Name of the student party, whose line has a URL.
        class_names: Class names by label; None for those of a preset's public benchmark.
        minimum: Smallest number of teachers; None for all.
        edition: Name of the release; None for a digest of all its inputs.
        deadline: Seconds after which a round closes.
        overlap: Largest number of parties that hold data of one person.
        records: Largest number of records per teacher, for sums.
        name: Name of the collaboration.
    """

    lines: Sequence[PartyLine]
    teachers: Mapping[str, int]
    guardian: str
    student: str
    class_names: Sequence[str] | None = None
    minimum: int | None = None
    edition: str | None = None
    deadline: float = 14 * 86_400.0
    overlap: int = 1
    records: int | None = None
    name: str = ""

    def parties(self) -> dict[str, Any]:
        """Return names, keys and services for the terms.

        Raises:
            SettingError: The line of a party is missing, or that of a service has no URL.
        """
        lines = {line.name: line for line in self.lines}
        names = [self.guardian, self.student, *self.teachers]
        if missing := [name for name in names if name not in lines]:
            raise SettingError(f"{', '.join(missing)} sent no line (terrine party key). Add it to the file of keys.")
        services = {"guardian": lines[self.guardian], "student": lines[self.student]}
        if missing := [line.name for line in services.values() if line.url is None]:
            raise SettingError(
                f"The line of {missing[0]} has no URL. Its party runs: terrine party key --url https://..."
            )
        return {
            "guardian": self.guardian,
            "student": self.student,
            "keys": {name: lines[name].key for name in names},
            "services": {role: {"url": line.url, "certificate": line.certificate} for role, line in services.items()},
        }


def propose(
    folder: Path, preset: str, assignments: Sequence[str], options: ProposalOptions
) -> tuple[Proposal, list[str]]:
    """Write a proposal into a new folder; return it, and sentences about the expected student.

    Raises:
        SettingError: The preset has settings that parties do not support.
        BudgetError: The budget pays for no answer.
    """
    if folder.exists():
        raise SettingError(f"{folder} exists already. Choose another folder, or remove that one.")
    root, parties = project_root(), options.parties()
    values = merge_overrides(project_settings(root), read_preset(root, preset).overrides)
    params, names = _resolve(root, preset, merge_overrides(values, parse_assignment(*assignments)), options)
    content = public_parameters(params)
    run = Run(root, f"proposal-{digest({'params': content, 'classes': names})}", params)
    try:
        draws = synthesize.plan(run)
        for draw in draws:
            synthesize.draw_shard.fn(run, draw)
        synthesize.assemble_images.fn(run, draws)
        pretrain.pretrain_backbone.fn(run)
        sums = params.aggregation.reveals == "sums"
        teaching = None if sums else Teaching(seed=params.seed, teachers=content["teachers"])
        about = make_terms(
            run,
            options.teachers,
            class_names=names,
            minimum=options.minimum,
            edition=options.edition or "",
            overlap=options.overlap,
            records=options.records,
            teaching=teaching,
            averages=None if teaching is None else _averages(run, teaching, options, len(names)),
        )
        about |= {"deadline": options.deadline, "name": options.name}
        about |= {"learning": {"seed": params.seed, "student": content["student"]}}
        terms: Terms = checked(about | parties)
        if options.edition is None:
            made_of = [terms.identity(), terms.backbone, terms.class_names, content["teachers"], terms.learning]
            terms = terms.model_copy(update={"edition": digest(made_of)})
        given = {} if terms.table is None else {"data": {"path": _PATH}}
        own = OwnTeachers(
            params=teacher_params(terms) | given, images=run.folders.images, backbone=run.folders.backbone
        )
        for held in {*terms.teachers.values()}:
            own_params(own, terms, held)  # raises if a teacher party could not train with these terms
        with atomic_folder(folder) as temporary:
            write_proposal(temporary, terms, run.folders.images, run.folders.backbone)
    finally:
        shutil.rmtree(run.folders.public, ignore_errors=True)  # the linked files stay
    return read_proposal(folder), _outlook(params, terms)


def teacher_params(terms: Terms) -> dict[str, Any]:
    """Return the parameters of a teacher party that follow from the terms."""
    return {"seed": terms.learning.get("seed", 0), "privacy": {"unit": terms.unit}}


def _outlook(params: Params, terms: Terms) -> list[str]:
    """Return sentences about the expected student."""
    mu = mu_of(terms.epsilon, terms.delta) / terms.overlap
    if terms.records is not None and terms.length is not None:
        one = signal_of_sums(1, mu, classes=terms.classes, features=terms.length)
        enough, most = math.ceil(ENOUGH_OF_SUMS / one), terms.records * terms.total
        found = f"A student learns from about {enough:,} {terms.unit}s at all parties; the terms allow {most:,}."
        return [found, *(["Doubtful: the student would learn little but noise."] if most < enough else [])]
    if not isinstance(params.aggregation, GaussianHistogram):
        return []
    spent = 0.0 if terms.averages is None else mu_squared(terms.averages.event)
    found_signal = signal(terms.total, math.sqrt(mu**2 - spent), terms.classes)
    found = (
        f"{terms.total:,} teachers have a signal of {format_signal(found_signal)}. A student learns from {ENOUGH:g}; "
        f"{format_signal(ample(terms.classes))} is ample."
    )
    doubt = "Doubtful: the student would learn little but noise. Have more teachers, or raise aggregation.epsilon."
    return [found, *([doubt] if found_signal < ENOUGH else [])]


def _resolve(root: Path, preset: str, values: dict[str, Any], options: ProposalOptions) -> tuple[Params, list[str]]:
    """Return the parameters of the proposal, without `auto`, and the class names.

    If the number of records is given, `aggregation.mechanism=auto` is resolved as in a local run.
    """
    data = values.get("data") or {}
    kind = SOURCES.of(data.get("name", SOURCES.default))
    if data.get("public_fraction") is not None:
        raise SettingError("data.public_fraction cannot be proposed: public rows are of one party. Set data.columns.")
    if POOL in (values.get("queries") or {}).get("sources", {}):
        raise SettingError(
            f"queries.sources has `{POOL}`, images of one party. Propose image programs (terrine images)."
        )
    if "path" in kind.model_fields:
        data = {"path": _PATH, **data}
    total = sum(options.teachers.values())
    fixed: dict[str, Any] = {
        "data": data,
        "privacy": {"moments": 0},
        "aggregation": {"where": "parties"},
        "ledger": {"account": "kept by the guardian", "epsilon": 1.0},
    }
    if options.records is not None:
        local = {"partition": {"teachers": AUTO}, "aggregation": {"where": "local"}}
        values = resolve_mechanism(merge_overrides(values, local))
    values = merge_overrides(values, fixed) | {
        "partition": {"teachers": max(total, 2)},
        "collaboration": {"parties": 1},
    }
    taken, automatic = replace_auto(values)
    params = _validate(taken)
    if options.records is not None and params.aggregation.reveals != "sums":
        raise SettingError(
            f"--records bounds sums, and with aggregation.mechanism={params.aggregation.mechanism} teachers vote. "
            "Leave it out, or propose sums: --set aggregation.mechanism=gradients."
        )
    check_not_transcription(preset, params)
    if options.class_names is None and not params.data.public_benchmark:
        raise SettingError("--classes is missing: name the classes in order of their labels: --classes healthy,ill.")
    names = list(options.class_names or params.data.survey(root, seed=SPLIT_SEED).class_names)
    if chosen := {key for key in automatic if key != ("partition", "teachers")}:
        count = None if ("queries", "count") in chosen else params.queries.count
        budget = params.aggregation
        sized = plan(0, classes=len(names), epsilon=budget.epsilon, delta=budget.delta, queries=count, teachers=total)
        # A person at several parties is several units, which the noise covers.
        numbers = {("aggregation", "sigma"): sized.sigma * options.overlap, ("queries", "count"): sized.queries}
        for section, key in chosen:
            taken[section] = {**taken[section], key: numbers[section, key]}
        params = _validate(taken)
    return params, names


def _validate(values: dict[str, Any]) -> Params:
    """Return the validated parameters of a collaboration.

    A trial on one machine refuses teachers that average (`AveragedTeachers.check`), since it distributes votes to its
    parties. Parties train for themselves, so only the other sections are checked as in a trial.

    Raises:
        SettingError: The settings need something that parties cannot compute together.
    """
    params = validate(merge_overrides(values, {"aggregation": {"where": "local"}}))
    if (reason := params.teachers.party_restriction) is not None:
        raise SettingError(f"{reason}.")
    if not params.teachers.averages:
        return validate(values)
    params = params.model_copy(update={"aggregation": params.aggregation.model_copy(update={"where": "parties"})})
    for section in (params.aggregation, params.collaboration, params.privacy):
        try:
            section.check(params)
        except ValueError as error:
            raise SettingError(f"{error}.") from error
    return params


def _averages(run: Run, teaching: Teaching, options: ProposalOptions, classes: int) -> SharedAverages | None:
    """Return the averages of all parties' teachers, with the noise for their share of the budget, or None."""
    settings, budget, total = teaching.settings, run.params.aggregation, sum(options.teachers.values())
    if not isinstance(settings, AveragedTeachers) or not settings.releases_averages:
        return None
    data, backbone = run.params.data, read_backbone(run.folders)
    context = TeacherContext(classes, data.channels, data.size, lambda: backbone, seed=teaching.seed, parties=total)
    learner = settings.make_learner(context)
    epsilon = epsilon_per_unit(budget.epsilon, budget.delta, options.overlap)
    averaging = calibrated(settings, epsilon=epsilon, delta=budget.delta)
    return SharedAverages(averaging, total, learner.length, backbone.feature_dim if averaging.centred else 0)
