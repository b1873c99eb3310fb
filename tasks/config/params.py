"""All parameters of a run, checked before any work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from tasks.config.listing import list_settings
from tasks.config.other_sections import Collaboration, Evaluation, Pretraining, Queries, Runner, Tracking
from tasks.config.privacy import WITH_MOMENTS, LedgerSettings, Privacy
from tasks.config.values import flat, merge, read_yaml
from terrine.aggregation.gnmax import GaussianHistogram
from terrine.aggregation.mechanism import MECHANISMS
from terrine.data.partition import PARTITIONS, IIDPartition
from terrine.data.source import SOURCES
from terrine.data.sources.digits import Digits
from terrine.errors import SettingError, did_you_mean, offered
from terrine.models.architecture import ARCHITECTURES
from terrine.models.scattering import Scattering
from terrine.settings import AtHome, Kinds, Settings, sections_of
from terrine.students.linear import LinearStudent
from terrine.students.student import STUDENTS
from terrine.teachers.base import TEACHERS
from terrine.teachers.linear import LinearTeachers
from terrine.transcription.settings import Transcription


class Params(Settings):
    """All parameters of one run."""

    seed: int = Field(0, ge=0)
    """Seed of every random draw except `secure` noise, which comes from the operating system."""
    device: str = "auto"
    """Torch device: auto (CUDA, then MPS, then the CPU), cpu, cuda, cuda:N or mps."""
    data: SOURCES.union() = Digits()  # type: ignore[valid-type]
    privacy: Privacy = Privacy()
    partition: PARTITIONS.union() = IIDPartition()  # type: ignore[valid-type]
    queries: Queries = Queries()
    backbone: ARCHITECTURES.union() = Scattering()  # type: ignore[valid-type]
    pretraining: Pretraining = Pretraining()
    teachers: TEACHERS.union() = LinearTeachers()  # type: ignore[valid-type]
    """The models that vote."""
    aggregation: MECHANISMS.union() = Field(  # type: ignore[valid-type]
        GaussianHistogram(sigma=27), validate_default=True
    )
    """The mechanism that turns votes into a release, with the budget of the run."""
    collaboration: Collaboration = Collaboration()
    student: STUDENTS.union() = LinearStudent()  # type: ignore[valid-type]
    """The model that leaves the building."""
    evaluation: Evaluation = Evaluation()
    ledger: LedgerSettings = LedgerSettings()
    runner: Runner = Runner()
    transcription: Transcription | None = None
    """Of a run that is a transcription; null for all others."""
    tracking: Tracking = Field(Tracking(), validate_default=True)
    """The last, for what its private_metrics are by default hangs on the others."""

    @field_validator("aggregation")
    @classmethod
    def _asked_about_each_finding(cls, value: Any, info: ValidationInfo) -> Any:
        data = info.data.get("data")
        return value if data is None else value.model_copy(update={"findings": len(data.several) or 1})

    @field_validator("tracking")
    @classmethod
    def _private_metrics_of_public_data_alone(cls, value: Tracking, info: ValidationInfo) -> Tracking:
        if value.private_metrics is not None:
            return value
        data, transcription = info.data.get("data"), info.data.get("transcription")
        public = data is not None and data.public_benchmark
        foreign = transcription is not None and not transcription.teacher.anyone_may_know
        return value.model_copy(update={"private_metrics": public and not foreign})

    @field_validator("device")
    @classmethod
    def _device_has_a_name(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("is empty. Use auto, cpu, cuda, cuda:N or mps")
        return value

    @model_validator(mode="after")
    def _sections_agree(self) -> Params:
        current = {self.teachers.statistics, self.student.statistics} != {"original"}
        if current and self.queries.batch < 2:
            raise ValueError(
                f"queries.batch={self.queries.batch} is too small: current statistics need at least 2 images in a "
                "batch (16 or more are wise). Raise queries.batch, or use statistics: original"
            )
        alone = [kind for kind, share in self.queries.shares().items() if share < 2]
        if current and alone and self.data.name != "table":
            raise ValueError(
                f"queries.count={self.queries.count} leaves one image for the source '{alone[0]}': current statistics "
                "need two. Raise queries.count, or the source's weight"
            )
        if self.queries.select != "order" and self.queries.rounds < 2:
            raise ValueError(
                f"queries.select={self.queries.select} chooses by what earlier rounds released. Set queries.rounds to "
                "2 or more, or queries.select=order"
            )
        for name in type(self).model_fields:
            section = getattr(self, name)
            if isinstance(section, Settings):
                section.check(self)
        return self


FAMILIES: dict[str, Kinds[Any]] = {
    "data": SOURCES,
    "partition": PARTITIONS,
    "backbone": ARCHITECTURES,
    "teachers": TEACHERS,
    "aggregation": MECHANISMS,
    "student": STUDENTS,
}
"""The sections that are one of several kinds, by their names."""
AUTO = "auto"
"""Marker of a value that is chosen from public quantities (`tasks.config.automatic`)."""
SUMS = "sums"
"""The kind of student that is the head of released sums."""


def lay_over(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with `overrides` laid over it.

    Where they choose another kind of a section, what that kind does not have goes: a preset's penalty of linear
    teachers says nothing about forests. So does a null for what only other kinds have, a choice that only they offer,
    and so do moments (`privacy`) where a backbone is chosen that has none.

    A mechanism that the overrides choose chooses its student, and a student its mechanism (`_with_its_other`).
    """
    base, overrides = _with_its_other(base, overrides)
    merged = merge(base, overrides)
    for name, kinds in FAMILIES.items():
        section = merged.get(name)
        if not isinstance(section, dict) or section.get(kinds.key, kinds.default) not in kinds.names():
            continue
        chosen = kinds.of(section.get(kinds.key, kinds.default))
        foreign = kinds.settings() - set(chosen.model_fields)
        given = overrides.get(name) or {}
        unsaid = {key for key in foreign & section.keys() if section[key] is None or key not in given}
        others = [kinds.of(other) for other in kinds.names()]
        for key in section.keys() & chosen.model_fields.keys() - given.keys():
            own = _choices(chosen, key)
            if own and section[key] not in own and any(section[key] in _choices(other, key) for other in others):
                unsaid.add(key)
        merged[name] = {key: value for key, value in section.items() if key not in unsaid}
    privacy, backbone = merged.get("privacy"), merged.get("backbone")
    another = isinstance(backbone, dict) and backbone.get("kind", ARCHITECTURES.default) != WITH_MOMENTS
    if another and isinstance(privacy, dict) and "moments" not in (overrides.get("privacy") or {}):
        merged["privacy"] = {key: value for key, value in privacy.items() if key != "moments"}
    return merged


def _with_its_other(base: dict[str, Any], overrides: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both mappings. If the overrides choose sums or votes by one setting, add the settings that follow from it.

    Students of kind `sums` go with mechanisms that release sums, all other kinds with mechanisms that release answers.
    A mechanism without a student, or a student without a mechanism, is given one that goes with it. Settings of `base`
    that only the other side has are dropped: its student, teachers that average, and rounds of queries. If the
    overrides choose both, they stay as they are, and validation refuses a contradiction.
    """
    mechanism, student = _kind(overrides, "aggregation"), _kind(overrides, "student")
    before = _kind(base, "aggregation") or MECHANISMS.default
    if mechanism is None and student is not None and (before == AUTO or _sums(before) != (student == SUMS)):
        mechanism = "gradients" if student == SUMS else MECHANISMS.default
        overrides = merge(overrides, {"aggregation": {"mechanism": mechanism}})
    if mechanism is None:
        return base, overrides
    if student is None and _sums(mechanism):
        overrides = merge(overrides, {"student": {"kind": SUMS}})
    if _sums(mechanism) != (_kind(base, "student") == SUMS):
        base = {name: section for name, section in base.items() if name != "student"}
    if _sums(mechanism) and _kind(base, "teachers") == "averaged":
        base = {name: section for name, section in base.items() if name != "teachers"}
    if _sums(mechanism) and isinstance(base.get("queries"), dict):
        asked = {key: value for key, value in base["queries"].items() if key not in ("rounds", "select")}
        base = {**base, "queries": asked}
    another = _kind(base, "aggregation") not in (None, mechanism) and "sigma" not in base["aggregation"]
    if another and mechanism in (AUTO, MECHANISMS.default):
        overrides = merge({"aggregation": {"sigma": AUTO}}, overrides)
    return base, overrides


def _kind(values: dict[str, Any], name: str) -> Any:
    """Return the kind that a section says it is of; None if it does not."""
    section = values.get(name)
    return section.get(FAMILIES[name].key) if isinstance(section, dict) else None


def _sums(mechanism: Any) -> bool:
    """Return whether a mechanism releases sums."""
    return mechanism in MECHANISMS.names() and MECHANISMS.of(mechanism).reveals == "sums"


def _choices(settings: type[Settings], key: str) -> tuple[object, ...]:
    """Return what a setting is chosen from; nothing where it is no choice, or not known."""
    field = settings.model_fields.get(key)
    return get_args(field.annotation) if field is not None and get_origin(field.annotation) is Literal else ()


def _sentence(error: ValidationError) -> str:
    """Turn pydantic's findings into sentences that name the key, the value and the remedy."""
    return "\n".join(_about(finding) for finding in error.errors(include_url=False))


def _about(finding: Any) -> str:
    path, section, kind = _place(finding["loc"])
    key, message = ".".join(path), finding["msg"].removeprefix("Value error, ")
    kinds = FAMILIES.get(path[0]) if path else None
    match finding["type"]:
        case "extra_forbidden":
            known = ", ".join(section.model_fields)
            if kinds is not None and path[-1] in kinds.settings():
                return (
                    f"{key}={finding['input']!r} has no meaning for {kinds.key}={kind}. Remove it; known here: {known}."
                )
            return f"{key}: there is no such parameter.{_meant(key, finding['input'])} Known here: {known}."
        case "union_tag_invalid" if kinds is not None:
            chosen = finding["ctx"]["tag"]
            near = did_you_mean(str(chosen), kinds.names())
            return f"{key}.{kinds.key}={chosen}: there is none of this name.{near} Known: {', '.join(kinds.names())}."
        case "missing":
            needed = f": {kinds.key}={kind} needs it" if kinds is not None and kind else ""
            return f"{key} is missing{needed}. Set {key}."
        case "value_error":
            return f"{key}.{message}." if key else f"{message}."
        case "string_type" if isinstance(finding["input"], int | float):
            message += f". Put a name that looks like a number, or like yes or no, into quotes: --set '{key}=\"...\"'"
    return f"{key}={finding['input']!r}: {message[0].lower()}{message[1:]}."


def _meant(key: str, value: Any) -> str:
    """Ask whether a parameter of almost this name was meant, or those of its name in other sections."""
    key = next(iter(flat({key: value})))
    known: dict[str, str] = {}
    for setting in list_settings((Params,), FAMILIES):
        known.setdefault(setting.key, setting.meaning)
    section, _, last = key.rpartition(".")
    elsewhere = [other for other in known if other.rpartition(".")[2] == last]
    if section and (near := did_you_mean(key, elsewhere)):
        return near
    # The section `aggregation` sets the price of a release, so its setting comes first.
    elsewhere.sort(key=lambda other: not other.startswith("aggregation."))
    said = [f"{other} ({_in_short(known[other])})" if len(elsewhere) > 1 else other for other in elsewhere[:4]]
    return offered(said) or did_you_mean(key, known)


def _in_short(meaning: str) -> str:
    """Return the beginning of what a setting means, to stand in brackets."""
    first = re.split(r"[.:;,(]", meaning, maxsplit=1)[0].strip()
    return first[:1].lower() + first[1:]


def _place(location: tuple[int | str, ...]) -> tuple[list[str], type[Settings], str | None]:
    """Return the keys that lead to a finding, the section that the last is looked for in, and that section's kind."""
    path: list[str] = []
    section: type[Settings] = Params
    inner: tuple[type[Settings], ...] = (Params,)
    kind = None
    for part in map(str, location):
        if len(inner) > 1:  # which kind it is stands between the section and its key
            key = FAMILIES[path[0]].key
            kind, inner = part, tuple(own for own in inner if part in get_args(own.model_fields[key].annotation))
            continue
        section = inner[0] if inner else section
        path.append(part)
        inner = sections_of(section.model_fields[part]) if part in section.model_fields else ()
    return path, section, kind


def validate(values: dict[str, Any]) -> Params:
    """Check a nested mapping and return it as `Params`.

    Raises SettingError naming every key that is unknown, of the wrong type or impossible, and what to do about it.
    """
    try:
        return Params.model_validate(values)
    except ValidationError as error:
        raise SettingError(_sentence(error)) from error


def read_parameters(path: Path) -> Params:
    """Read the parameters of a run. Raises SettingError for an invalid file."""
    return validate(read_yaml(path))


def public_parameters(params: Params) -> dict[str, Any]:
    """Return what anybody may read of a run's parameters, as JSON values: all but what names the site's files, machines
    and data (`AtHome`), which is absent."""
    return published(params.model_dump(mode="json"))


def published(overrides: dict[str, Any], sections: tuple[type[Settings], ...] = (Params,)) -> dict[str, Any]:
    """Return overrides of parameters without those that are `AtHome`."""
    kept = {}
    for key, value in overrides.items():
        fields = [section.model_fields[key] for section in sections if key in section.model_fields]
        marks = [mark for field in fields for mark in field.metadata if isinstance(mark, AtHome)]
        if not fields or any(value not in mark.unless for mark in marks):
            continue
        inner = tuple(section for field in fields for section in sections_of(field))
        kept[key] = published(value, inner) if inner and isinstance(value, dict) else value
    return kept
