"""All parameters of a run: validation, `--set` assignments and merging of overrides."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from tasks.config.listing import list_settings
from tasks.config.sections import (
    WITH_MOMENTS,
    Collaboration,
    Evaluation,
    LedgerSettings,
    Pretraining,
    Privacy,
    Queries,
    ReleaseSettings,
    Runner,
    Tracking,
)
from tasks.config.values import Loader, flat, merge, read_yaml
from terrine.aggregation.gnmax import DEFAULT_SIGMA, GaussianHistogram
from terrine.aggregation.mechanism import MECHANISMS
from terrine.data.partition import PARTITIONS, IIDPartition
from terrine.data.source import SOURCES
from terrine.data.sources.digits import Digits
from terrine.errors import SettingError, did_you_mean, offered, some
from terrine.models.architecture import ARCHITECTURES
from terrine.models.scattering import Scattering
from terrine.privacy.facts import About
from terrine.settings import Kinds, Settings, SiteLocal, sections_of
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
    aggregation: MECHANISMS.union() = Field(  # type: ignore[valid-type]
        GaussianHistogram(sigma=DEFAULT_SIGMA), validate_default=True
    )
    collaboration: Collaboration = Collaboration()
    student: STUDENTS.union() = LinearStudent()  # type: ignore[valid-type]
    evaluation: Evaluation = Evaluation()
    about: About = About()
    ledger: LedgerSettings = LedgerSettings()
    release: ReleaseSettings = ReleaseSettings()
    runner: Runner = Runner()
    transcription: Transcription | None = None
    tracking: Tracking = Field(Tracking(), validate_default=True)  # last: its default depends on data and transcription

    @field_validator("aggregation")
    @classmethod
    def _with_number_of_findings(cls, value: Any, info: ValidationInfo) -> Any:
        data = info.data.get("data")
        return value if data is None else value.model_copy(update={"findings": len(data.several) or 1})

    @field_validator("tracking")
    @classmethod
    def _private_metrics_only_of_public_data(cls, value: Tracking, info: ValidationInfo) -> Tracking:
        if value.private_metrics is not None:
            return value
        data, transcription = info.data.get("data"), info.data.get("transcription")
        public = data is not None and data.public_benchmark
        foreign = transcription is not None and not transcription.teacher.anyone_may_know
        return value.model_copy(update={"private_metrics": public and not foreign})

    @field_validator("device")
    @classmethod
    def _named_device(cls, value: str) -> str:
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
        single = [kind for kind, share in self.queries.shares().items() if share < 2]
        if current and single and self.data.name != "table":
            raise ValueError(
                f"queries.count={self.queries.count} leaves one image for the source '{single[0]}': current statistics "
                "need two. Raise queries.count, or the source's weight"
            )
        if self.queries.select != "order" and self.queries.rounds < 2:
            raise ValueError(
                f"queries.select={self.queries.select} needs the labels of earlier rounds. Set queries.rounds to 2 or "
                "more, or queries.select=order"
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
"""Sections with several types, by name."""
AUTO = "auto"
"""Marker of a value that is chosen from public quantities (`tasks.config.automatic`)."""
SUMS = "sums"
"""The student type whose head is computed from released sums."""


def merge_overrides(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return `base` merged with `overrides`.

    If the overrides change the type of a section, settings and choices that the new type lacks are dropped: the ridge
    penalty of linear teachers does not apply to forests. `privacy.moments` is dropped with the backbone that needs it.
    Choosing a mechanism also chooses its student, and vice versa (`_with_counterpart`).
    """
    base, overrides = _with_counterpart(base, overrides)
    merged = merge(base, overrides)
    for name, kinds in FAMILIES.items():
        section = merged.get(name)
        if not isinstance(section, dict) or section.get(kinds.key, kinds.default) not in kinds.names():
            continue
        chosen = kinds.of(section.get(kinds.key, kinds.default))
        foreign = kinds.settings() - set(chosen.model_fields)
        given = overrides.get(name) or {}
        dropped = {key for key in foreign & section.keys() if section[key] is None or key not in given}
        others = [kinds.of(other) for other in kinds.names()]
        for key in section.keys() & chosen.model_fields.keys() - given.keys():
            own = _choices(chosen, key)
            if own and section[key] not in own and any(section[key] in _choices(other, key) for other in others):
                dropped.add(key)
        merged[name] = {key: value for key, value in section.items() if key not in dropped}
    privacy, backbone = merged.get("privacy"), merged.get("backbone")
    without = isinstance(backbone, dict) and backbone.get("kind", ARCHITECTURES.default) != WITH_MOMENTS
    if without and isinstance(privacy, dict) and "moments" not in (overrides.get("privacy") or {}):
        merged["privacy"] = {key: value for key, value in privacy.items() if key != "moments"}
    return merged


def _with_counterpart(base: dict[str, Any], overrides: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both mappings, completed if the overrides choose only a mechanism or only a student.

    Student type `sums` requires a mechanism that releases sums; all other types require answers. Settings of `base`
    that do not fit are dropped: its student, averaging teachers and query rounds. If the overrides choose both,
    validation refuses a contradiction.
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
        queries = {key: value for key, value in base["queries"].items() if key not in ("rounds", "select")}
        base = {**base, "queries": queries}
    changed = _kind(base, "aggregation") not in (None, mechanism) and "sigma" not in base["aggregation"]
    if changed and mechanism in (AUTO, MECHANISMS.default):
        overrides = merge({"aggregation": {"sigma": AUTO}}, overrides)
    return base, overrides


def _kind(values: dict[str, Any], name: str) -> Any:
    """Return the type named in a section, or None."""
    section = values.get(name)
    return section.get(FAMILIES[name].key) if isinstance(section, dict) else None


def _sums(mechanism: Any) -> bool:
    return mechanism in MECHANISMS.names() and MECHANISMS.of(mechanism).reveals == "sums"


def _choices(settings: type[Settings], key: str) -> tuple[object, ...]:
    """Return the choices of a Literal setting; empty for other settings."""
    field = settings.model_fields.get(key)
    return get_args(field.annotation) if field is not None and get_origin(field.annotation) is Literal else ()


def _message(finding: Any) -> str:
    """Return an error message with key, value and remedy for one finding of pydantic."""
    path, section, kind = _place(finding["loc"])
    key, message = ".".join(path), finding["msg"].removeprefix("Value error, ")
    kinds = FAMILIES.get(path[0]) if path else None
    match finding["type"]:
        case "extra_forbidden":
            known = ", ".join(section.model_fields)
            if kinds is not None and path[-1] in kinds.settings():
                owners = some([other for other in kinds.names() if path[-1] in kinds.of(other).model_fields])
                return (
                    f"{key}={finding['input']!r} has no meaning for {kinds.key}={kind}; it belongs to {owners}. Remove "
                    f"it; known here: {known}."
                )
            return f"{key} is not a setting.{_suggestion(key, finding['input'])} Known here: {known}."
        case "union_tag_invalid" if kinds is not None:
            chosen = finding["ctx"]["tag"]
            near = did_you_mean(str(chosen), kinds.names())
            return f"{key}.{kinds.key}={chosen} does not exist.{near} Known: {', '.join(kinds.names())}."
        case "missing":
            needed = f": {kinds.key}={kind} needs it" if kinds is not None and kind else ""
            return f"{key} is missing{needed}. Set {key}."
        case "value_error":
            return f"{key}.{message}." if key else f"{message}."
        case "path_type" if finding["input"] is None:
            return f"{key} is empty. Set {key}."
        case "string_type" if isinstance(finding["input"], int | float):
            hint = "Put a name that looks like a number, or like yes or no, into quotes"
            if path[-1].isdigit():  # an item of a list, which can only be set as a whole
                key = ".".join(path[:-1])
                return f'{key}: input should be strings. {hint}: --set \'{key}=["...", "..."]\'.'
            message += f". {hint}: --set '{key}=\"...\"'"
    return f"{key}={finding['input']!r}: {message[0].lower()}{message[1:]}."


def _suggestion(key: str, value: Any) -> str:
    """Return "Did you mean" with settings of a similar name, or of the same name in other sections."""
    key = next(iter(flat({key: value})))
    known: dict[str, str] = {}
    for setting in list_settings((Params,), FAMILIES):
        known.setdefault(setting.key, setting.meaning)
    section, _, last = key.rpartition(".")
    elsewhere = [other for other in known if other.rpartition(".")[2] == last]
    if section and (near := did_you_mean(key, elsewhere)):
        return near
    # `aggregation` determines the cost of the release, so its setting comes first.
    elsewhere.sort(key=lambda other: not other.startswith("aggregation."))
    if len(elsewhere) > 1:  # add the first clause of each description, to tell them apart
        clauses = {other: re.split(r"[.:;,(]", known[other], maxsplit=1)[0].strip() for other in elsewhere}
        elsewhere = [f"{other} ({clause[:1].lower()}{clause[1:]})" for other, clause in clauses.items()]
    return offered(elsewhere[:4]) or did_you_mean(key, known)


def _place(location: tuple[int | str, ...]) -> tuple[list[str], type[Settings], str | None]:
    """Return the keys in a pydantic error location, the section of the last key, and the type of that section."""
    path: list[str] = []
    section: type[Settings] = Params
    inner: tuple[type[Settings], ...] = (Params,)
    kind = None
    for part in map(str, location):
        if len(inner) > 1:  # pydantic inserts the type between the section and its key
            key = FAMILIES[path[0]].key
            kind, inner = part, tuple(own for own in inner if part in get_args(own.model_fields[key].annotation))
            continue
        section = inner[0] if inner else section
        path.append(part)
        inner = sections_of(section.model_fields[part]) if part in section.model_fields else ()
    return path, section, kind


def validate(values: dict[str, Any]) -> Params:
    """Return a nested mapping as validated parameters.

    Raises:
        SettingError: The message lists every invalid key with its value and a remedy.
    """
    try:
        return Params.model_validate(values)
    except ValidationError as error:
        found = error.errors(include_url=False)
        items = {each["loc"][:-1] for each in found}  # pydantic also reports a list without its invalid items
        messages = [_message(each) for each in found if each["type"] != "too_short" or each["loc"] not in items]
        raise SettingError("\n".join(dict.fromkeys(messages))) from error


def read_parameters(path: Path) -> Params:
    """Read the parameters of a run.

    Raises:
        SettingError: If the file is missing or invalid.
    """
    return validate(read_yaml(path))


def parse_assignment(*texts: str) -> dict[str, Any]:
    """Return `--set` assignments `section.key=value` (value in YAML) as a nested mapping; later ones win.

    >>> parse_assignment("aggregation.epsilon=2", "seed=3")
    {'aggregation': {'epsilon': 2}, 'seed': 3}

    Raises:
        SettingError: If an assignment has no key or no YAML value.
    """
    values: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            raise SettingError(f"--set {text}: write section.key=value, for example --set aggregation.epsilon=2.")
        try:
            nested: Any = yaml.load(value, Loader)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise SettingError(f"--set {text}: '{value}' is not a YAML value. Put it in quotes.") from error
        if isinstance(nested, str) and re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+", nested):
            nested = float(nested)  # YAML 1.1 reads 1e-5 as text
        for part in reversed(parts):
            nested = {part: nested}
        values = merge(values, nested)
    return values


def public_parameters(
    values: Params | Mapping[str, Any], sections: tuple[type[Settings], ...] = (Params,)
) -> dict[str, Any]:
    """Return the parameters without those that name files, hosts or data of the site (`SiteLocal`).

    Args:
        values: Parameters, or nested overrides as JSON values.
        sections: Classes that declare the keys of `values`.
    """
    kept = {}
    for key, value in (values.model_dump(mode="json") if isinstance(values, Params) else values).items():
        fields = [section.model_fields[key] for section in sections if key in section.model_fields]
        marks = [mark for field in fields for mark in field.metadata if isinstance(mark, SiteLocal)]
        if not fields or any(value not in mark.unless for mark in marks):
            continue
        inner = tuple(section for field in fields for section in sections_of(field))
        kept[key] = public_parameters(value, inner) if inner and isinstance(value, dict) else value
    return kept
