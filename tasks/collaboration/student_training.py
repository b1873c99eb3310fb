"""The student party's training: the student of a collaboration and its privacy statement, from the stored answers."""

from __future__ import annotations

from typing import Any

from tasks.artefacts.features import query_features
from tasks.artefacts.images import read_queries
from tasks.collaboration.local_training import backbone_params
from tasks.collaboration.proposal import check_public
from tasks.config.params import Params, validate
from tasks.config.values import merge
from tasks.parties.answers import read_arrays, stored_answers
from tasks.parties.config import PartyConfig
from tasks.parties.release import stored_release
from tasks.parties.terms import Terms
from tasks.pipeline.aggregate import write_answers
from tasks.pipeline.public_inputs import describe_records
from tasks.pipeline.student import train_student
from tasks.pipeline.sums import write_sums
from tasks.reports.statement_page import write_statement_and_page
from tasks.runtime.code_digest import code_version
from tasks.runtime.run import Run
from tasks.runtime.store import Folders, link
from terrine.aggregation.mechanism import Mechanism
from terrine.aggregation.records import Whitening
from terrine.aggregation.release import answer_facts
from terrine.errors import ArtefactError, InputError, SettingError
from terrine.geometry import in_json, size_of
from terrine.privacy.accounting.events import of_several
from terrine.privacy.ledger.ledger import StoredRelease
from terrine.privacy.noise import delta_slack
from terrine.privacy.statement import PrivacyStatement

_RUN = "student"
_SECTIONS = ("seed", "device", "data", "student", "tracking")


def learn(config: PartyConfig) -> Run:
    """Train the student on a student party's answers and write its privacy.json; return the run.

    Raises:
        SettingError: party.yaml has no `learn`, or sets a value that the terms fix.
        ArtefactError: The student party has no answers yet.
        InputError: Images or backbone differ from those of the terms.
    """
    terms, own = config.terms, config.learn
    if own is None:
        raise SettingError("learn is missing in party.yaml: it names the public images and the backbone.")
    about = stored_answers(config)
    if about is None or about["guardian"] is None:
        raise ArtefactError(
            f"{config.answers} holds no answers yet. `terrine party status` says which reports are missing."
        )
    names = terms.class_names
    check_public(own.images, own.backbone, terms)
    folders = Folders(own.work, _RUN)
    link(own.images, folders.images)
    link(own.backbone, folders.backbone)
    run = Run(own.work, _RUN, _student_params(folders, config, about["guardian"]["noise"]))
    release = stored_release(about, terms, read_arrays(config))
    voted = {"teachers": terms.total, "classes": terms.classes, "class_names": names}
    if (sums := terms.fixed_point) is None:
        write_answers(run, voted, release, None)
    else:
        whitening = Whitening.fit(query_features(run, "original"))
        if whitening.length != sums.length:
            raise InputError(
                f"{own.backbone} gives vectors of {whitening.length} coordinates, and the terms have {sums.length}. "
                "Get the backbone from the proposing party."
            )
        write_sums(run, release, sums.schedule, whitening, voted, None)
    train_student.fn(run)
    write_statement_and_page(run, _statement(run, terms, about, release), names)
    return run


def _student_params(folders: Folders, config: PartyConfig, noise: str) -> Params:
    """Return the parameters of the student's training: the terms', and own settings if the terms leave a choice."""
    terms, own = config.terms, config.learn
    assert own is not None
    if foreign := [section for section in own.params if section not in _SECTIONS]:
        raise SettingError(
            f"learn.params.{foreign[0]} is not the student party's to set: it has {', '.join(_SECTIONS)}. The terms "
            "decide what is released, and how."
        )
    aggregation = {**_mechanism(terms), "noise": noise, "where": "parties"}
    fixed: dict[str, Any] = {
        "partition": {"teachers": max(terms.total, 2)},
        "collaboration": {"parties": len(terms.teachers)},
        "privacy": {"unit": terms.unit},
        "aggregation": aggregation | {"epsilon": terms.epsilon, "delta": terms.delta},
        # Required, but not used: the guardian keeps the ledger.
        "ledger": {"account": "kept by the guardian", "epsilon": terms.epsilon},
    }
    fixed |= backbone_params(own.backbone)
    shape, values = read_queries(folders).images.shape, dict(terms.learning)
    if len(shape) == 4:
        pictures = {"channels": shape[1], "size": in_json(size_of(shape)), "fit": terms.fit, "window": terms.window}
        values["data"] = {"name": "folder", "path": "elsewhere", **pictures}
    elif terms.table is not None:
        values["data"] = {"name": "table", "path": "elsewhere", **terms.table.model_dump(mode="json")}
    if terms.fixed_point is not None:
        values["student"] = {"kind": "sums"}
    return validate(merge(merge(values, own.params), fixed))


def _mechanism(terms: Terms) -> dict[str, Any]:
    """Return the mechanism with those of its parameters that the terms contain."""
    described = terms.described.describe()
    return {key: value for key, value in described.items() if key in terms.public()}


def _statement(run: Run, terms: Terms, about: dict[str, Any], release: StoredRelease) -> PrivacyStatement:
    """Return the statement of a release: from the terms, the answers, and the guardian's record."""
    guardian, described = about["guardian"], _mechanism(terms)
    if terms.fixed_point is None:
        mechanism: Any = run.params.aggregation
        assert isinstance(mechanism, Mechanism)
        answers = answer_facts(
            release,
            mechanism,
            teachers=terms.total,
            classes=terms.classes,
            epsilon=terms.epsilon,
            delta=terms.delta,
            drawn_before=0 if terms.averages is None else terms.averages.numbers,
        )
        if (averages := terms.averages) is not None:  # as tasks.artefacts.averages.describe_averages describes them
            settings = averages.averaging.settings
            vectors = sum(len(averages.parts(number)) for number in range(averages.passes))
            known = {"mode": settings.mode, "averages": settings.rounds - 1, "vectors": vectors}
            described["averaging"] = known | averages.averaging.describe()
    else:
        answers = {
            "event": release.event,
            "event_added": of_several(terms.fixed_point.schedule.event_added, terms.overlap),
            "delta": terms.delta,
            "delta_slack": delta_slack(terms.numbers, terms.epsilon),
            "epsilon_budget": terms.epsilon,
            "teachers": terms.total,
            **dict.fromkeys(("queries", "queried", "answered"), 0),
            "answered_per_class": (0,) * terms.classes,
        }
        noise = {key: value for key, value in terms.public().items() if key in ("sigma", "sigma_gradients")}
        described |= noise | {"numbers": terms.numbers}
    if terms.overlap > 1:
        described["overlap"] = terms.overlap
    described["parties"] = [*terms.teachers, terms.guardian, terms.student]
    described["opened"] = about["opened"][:10]
    return PrivacyStatement(
        run=terms.called,
        release_id=release.release_id,
        dataset=guardian["account"],
        epsilon_dataset=release.epsilon_total,
        epsilon_account=guardian["epsilon_account"],
        task=guardian["task"],
        # The terms assign units to parties, and each party partitions its own records.
        partition_digest=terms.digest,
        partition_disjoint=True,
        code_version=" ".join(f"{name} {value}" for name, value in code_version(run.root).items()),
        unit=terms.unit,
        trust_model="parties",
        noise=guardian["noise"],
        mechanism=described,
        **describe_records(run),
        **answers,
    )
