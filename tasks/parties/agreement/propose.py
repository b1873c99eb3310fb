"""`terrine party propose`: terms, and all that is public of a collaboration, from a preset and public inputs alone.

Nobody's records are read. The queries are drawn and the backbone is made by the stages that a run has for it, and lie
where runs of the same settings find them.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.artefacts.images import POOL
from tasks.config.automatic import may_be_summed, take_out, with_mechanism
from tasks.config.params import AUTO, Params, lay_over, published, validate
from tasks.config.presets import of_the_project, project_root, read_preset
from tasks.config.values import digest, parse_assignments
from tasks.parties.agreement.agreed import agreed
from tasks.parties.agreement.proposal import Proposal, read_proposal, write_proposal
from tasks.parties.agreement.terms import Teaching, Terms
from tasks.parties.config import OwnTeachers
from tasks.parties.training import own_params
from tasks.pipeline import pretrain, synthesize
from tasks.runtime.run import SPLIT_SEED, Run, refuse_transcription
from tasks.runtime.store import atomic_folder
from terrine.aggregation.gnmax import GaussianHistogram
from terrine.data.partition import IIDPartition
from terrine.data.source import SOURCES
from terrine.errors import SettingError
from terrine.planning import AMPLE_OF_SUMS, ENOUGH, ENOUGH_OF_SUMS, ample, plan, shown, signal, signal_of_sums
from terrine.privacy.accounting.gaussian import mu_of, mu_squared

_TRAINED_WITH = ("backbone", "teachers")
"""Sections of params.yaml that teacher parties have from the proposal; those of teachers stand in the terms as well."""


@dataclass(frozen=True)
class Wish:
    """What is proposed, beside a preset's settings: how many teachers each party holds, who convenes and who learns.

    name: what people call it. guardian, student: the name, and where it will listen, host:port. class_names: by label;
    None for those of a preset's public benchmark. edition: None for a digest of all that it is made of. The others: see
    `Terms`.
    """

    teachers: Mapping[str, int]
    guardian: tuple[str, str]
    student: tuple[str, str]
    class_names: Sequence[str] | None = None
    minimum: int | None = None
    edition: str | None = None
    deadline: float | None = None
    overlap: int = 1
    records: int | None = None
    name: str = ""


@dataclass(frozen=True)
class Outlook:
    """What a student may hope for by terms: sentences, and one that speaks against them where something does."""

    notes: list[str]
    doubt: str | None = None


def propose(folder: Path, preset: str, assignments: Sequence[str], wish: Wish) -> tuple[Proposal, Outlook]:
    """Write a proposal into `folder`, which must not exist; return it, and what a student may hope for.

    Raises SettingError for settings that parties cannot have, and BudgetError for a budget that pays for no answer.
    """
    if folder.exists():
        raise SettingError(f"{folder} exists already. Choose another folder, or remove that one.")
    for _, address in (wish.guardian, wish.student):
        check_address(address)
    root = project_root()
    values = preset_values(root, preset, assignments)
    params, names = _settled(root, preset, values, wish)
    made_of = {"params": published(params.model_dump(mode="json")), "classes": names}
    run = Run(root, f"proposal-{digest(made_of)}", params)
    try:
        _make_public(run)
        trained = trained_with(params)
        votes = params.aggregation.reveals != "sums"
        terms = agreed(
            run,
            wish.teachers,
            class_names=names,
            teaching=Teaching(seed=params.seed, teachers=trained["teacher"]["teachers"]) if votes else None,
            minimum=wish.minimum,
            overlap=wish.overlap,
            records=wish.records,
            guardian=wish.guardian[0],
            student=wish.student[0],
            deadline=wish.deadline,
            name=wish.name,
            edition=wish.edition or "",
        )
        if wish.edition is None:
            public = {"backbone": terms.backbone, "classes": terms.class_names, "params": trained}
            terms = terms.model_copy(update={"edition": digest([terms.identity(), public])})
        own = OwnTeachers(params=trained["teacher"], images=run.folders.images, backbone=run.folders.backbone)
        for held in {*terms.teachers.values()}:
            own_params(own, terms, held)  # which refuses what a teacher party could not train with
        addresses = {"guardian": wish.guardian[1], "student": wish.student[1]}
        with atomic_folder(folder) as temporary:
            write_proposal(temporary, terms, trained, addresses, run.folders.images, run.folders.backbone)
    finally:
        shutil.rmtree(run.folders.public, ignore_errors=True)  # what it links to stays, for other runs
    return read_proposal(folder), _outlook(values, params, terms)


def trained_with(params: Params) -> dict[str, dict[str, Any]]:
    """Return what teacher parties, and the student party, need to know of parameters: nothing that names a site."""
    values = published(params.model_dump(mode="json"))
    unit = {"privacy": {"unit": params.privacy.unit}}
    return {
        "teacher": {"seed": params.seed, **unit, **{section: values[section] for section in _TRAINED_WITH}},
        "student": {"seed": params.seed, "student": values["student"]},
    }


def _outlook(values: Mapping[str, Any], params: Params, terms: Terms) -> Outlook:
    """Return what a student may hope for. values: of the preset, before `auto` was chosen."""
    mu = mu_of(terms.epsilon, terms.delta) / terms.overlap
    if terms.records is not None:
        one = signal_of_sums(1, mu, classes=terms.classes, features=terms.length)
        enough, plenty = math.ceil(ENOUGH_OF_SUMS / one), math.ceil(AMPLE_OF_SUMS / one)
        hope = (
            f"Nobody votes: {terms.unit}s are summed. From about {enough:,} of them at all parties together on a "
            f"student learns, and {plenty:,} are ample."
        )
        most = terms.records * terms.total
        doubt = f"The terms allow {most:,} {terms.unit}s in all. A student would learn little but noise."
        return Outlook([hope], doubt if most < enough else None)
    notes = []
    if (values.get("aggregation") or {}).get("mechanism") == AUTO and may_be_summed(_by_itself(values)):
        notes.append(
            "Teachers vote, since nobody said how many records there are. Records that are summed make a far better "
            "student at the same ε: --records N, the most of a party for each of its TEACHERS (--teacher NAME=1)."
        )
    if (values.get("privacy") or {}).get("moments"):
        notes.append(
            "privacy.moments falls away, as nobody adds up what the images of several parties have in common: queries "
            "are asked about as they were drawn."
        )
    if not isinstance(params.aggregation, GaussianHistogram):
        return Outlook(notes)
    spent = 0.0 if terms.averages is None else mu_squared(terms.averages.event)
    found = signal(terms.total, math.sqrt(mu**2 - spent), terms.classes)
    notes.insert(
        0,
        f"{terms.total:,} teachers have a signal of {shown(found)}: from {ENOUGH:g} on a student learns, and "
        f"{shown(ample(terms.classes))} is ample.",
    )
    if found >= ENOUGH:
        return Outlook(notes)
    doubt = f"{terms.total} teachers are few for ε = {terms.epsilon:g}. A student would learn little but noise. "
    return Outlook(notes, doubt + "Have parties hold more teachers, or raise aggregation.epsilon.")


def _by_itself(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a run by itself, of which nobody says how many teachers there are."""
    return lay_over(dict(values), {"partition": {"teachers": AUTO}, "aggregation": {"where": "local"}})


def preset_values(root: Path, preset: str, assignments: Sequence[str]) -> dict[str, Any]:
    """Return what a preset says, with `--set` assignments, beside the defaults."""
    values = lay_over(of_the_project(root), read_preset(root, preset).overrides)
    return lay_over(values, parse_assignments(assignments))


def check_address(address: str) -> None:
    """Raise SettingError for what is no host:port."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise SettingError(f"An address is host:port, not {address!r}.")


def _settled(root: Path, preset: str, values: dict[str, Any], wish: Wish) -> tuple[Params, list[str]]:
    """Return the parameters of the proposal, every `auto` a number, and the names of the classes.

    A mechanism that is `auto` is that of a run by itself where somebody says how many records there are, and nobody
    how many teachers share them.
    """
    data = values.get("data") or {}
    kind = SOURCES.of(data.get("name", SOURCES.default))
    if not kind.of_images:
        raise SettingError(
            f"data.name={data['name']} cannot be proposed: its queries are rows of somebody's own table. Take images."
        )
    if POOL in (values.get("queries") or {}).get("sources", {}):
        raise SettingError(
            f"queries.sources has `{POOL}`, which is somebody's own images. Propose image programs: terrine "
            "images lists them."
        )
    if "path" in kind.model_fields:
        data = {"path": "with each party", **data}
    total = sum(wish.teachers.values())
    fixed: dict[str, Any] = {
        "data": data,
        # Nobody adds up what the images of several parties have in common.
        "privacy": {"moments": 0},
        "aggregation": {"where": "parties"},
        "ledger": {"account": "kept by the guardian", "epsilon": 1.0},
    }
    if wish.records is not None:
        values = with_mechanism(_by_itself(values))
    values = lay_over(values, fixed) | {"partition": {"teachers": max(total, 2)}, "collaboration": {"parties": 1}}
    taken, automatic = take_out(values)
    params = _validated(taken)
    if wish.records is not None and params.aggregation.reveals != "sums":
        raise SettingError(
            f"--records bounds sums, and with aggregation.mechanism={params.aggregation.mechanism} teachers vote. "
            "Leave it out, or propose sums: --set aggregation.mechanism=gradients."
        )
    refuse_transcription(preset, params)
    names = list(wish.class_names or _public_classes(root, params))
    if chosen := {key for key in automatic if key != ("partition", "teachers")}:
        count = None if ("queries", "count") in chosen else params.queries.count
        budget = params.aggregation
        sized = plan(0, classes=len(names), epsilon=budget.epsilon, delta=budget.delta, queries=count, teachers=total)
        # Who is at several parties is several units: noise is to hide them all.
        numbers = {("aggregation", "sigma"): sized.sigma * wish.overlap, ("queries", "count"): sized.queries}
        for section, key in chosen:
            taken[section] = {**taken[section], key: numbers[section, key]}
        params = _validated(taken)
    return params, names


def _validated(values: dict[str, Any]) -> Params:
    """Return parameters of parties. Raises SettingError for what parties cannot do together.

    Teachers that average are refused to a trial on one machine, which deals out votes (`AveragedTeachers.check`). These
    parties train for themselves, so of such teachers all sections but theirs are checked as a trial's are.
    """
    params = validate(lay_over(values, {"aggregation": {"where": "local"}}))
    if (reason := params.teachers.not_at_parties) is not None:
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


def _public_classes(root: Path, params: Params) -> Sequence[str]:
    if not params.data.public_benchmark:
        raise SettingError(
            "--classes is missing: name the classes, in order, as all parties call them: --classes healthy,ill."
        )
    return params.data.survey(root, seed=SPLIT_SEED).class_names


def _make_public(run: Run) -> None:
    draws = synthesize.plan(run)
    for draw in draws:
        synthesize.draw_shard.fn(run, draw)
    synthesize.assemble_images.fn(run, draws)
    pretrain.pretrain_backbone.fn(run)


def teachers_of_preset(root: Path, preset: str, assignments: Sequence[str]) -> int:
    """Return how many teachers a preset has. Raises SettingError where nobody says."""
    given = preset_values(root, preset, assignments).get("partition") or {}
    teachers = given.get("teachers", IIDPartition().teachers)
    if teachers == AUTO:
        raise SettingError("partition.teachers is auto, and nobody counts the records: --set partition.teachers=N.")
    return int(teachers)
