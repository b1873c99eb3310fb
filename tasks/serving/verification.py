"""Verification of a published statement by its recipient, without the ledger, secrets or private data.

Figures are recomputed from the statement's events, pages are rendered again, the student is compared with its manifest,
and all of these with the signature. Consistent files may still come from a third party: only a key that was received
through a different channel identifies the sender.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.reports.statement_page import SignatureMark
from tasks.serving.attestations import check_attestation, check_model_signature
from tasks.serving.pages import (
    ATTESTATION,
    FIGURES,
    MODEL,
    MODEL_SIGNATURE,
    SIGNATURE,
    SIGNATURES,
    STUDENT,
    draw_page,
    pages_in,
    student_classes,
    unpacked,
)
from terrine.aggregation.gradient_rounds import RoundSchedule
from terrine.aggregation.mechanism import MECHANISMS, Mechanism, parse_mechanism
from terrine.aggregation.sums import Sums, mu_left
from terrine.deployment.manifest import MANIFEST
from terrine.deployment.signature import Approval, Signature, fingerprint, read_signature
from terrine.errors import ArtefactError, InputError, TerrineError
from terrine.files import file_digest
from terrine.privacy.accounting.events import (
    Event,
    GaussianEvent,
    NonPrivateEvent,
    RandomisedResponseEvent,
    RepeatedEvent,
    SampledGaussianEvent,
    compose,
    count_of_units,
    counts,
    from_json,
    of_several,
    to_json,
)
from terrine.privacy.noised_sum import ClippedMean, ClippedSum
from terrine.privacy.statement import read_statement
from terrine.privacy.training import Training
from terrine.teachers.averaging.private import CENTRE_CLIP

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_FAULTS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError)


@dataclass(frozen=True)
class Check:
    """Result of one check: subject, whether it holds (None: undecidable), and a sentence."""

    what: str
    holds: bool | None
    detail: str


def verify_statement(path: Path, trusted: str | None = None) -> list[Check]:
    """Check the figures, pages, student and signature of a release.

    Args:
        path: Folder of the release, a file in it, or its archive (`tasks.serving.pages`).
        trusted: Fingerprint of the site's key, received through a different channel.

    Raises:
        InputError: The release has no statement.
        ArtefactError: The archive of the release is damaged.
    """
    if path.is_file() and zipfile.is_zipfile(path):
        with unpacked(path) as folder:
            return verify_statement(folder, trusted)
    folder = path if path.is_dir() else path.parent
    statement_file = path if path.suffix == ".json" and path.name not in SIGNATURES else folder / FIGURES
    if not statement_file.is_file() or not path.exists():
        raise InputError(f"There is no statement {statement_file if path.exists() else path}. Name a release's folder.")
    if path.is_file() and path != statement_file and path.name not in (*SIGNATURES, *pages_in(folder)):
        raise InputError(f"{path} has no name that Terrine gives to a page. Keep the files of a release as they came.")
    statement, checks = _figures(statement_file)
    signature: Signature | None = None
    key: Ed25519PublicKey | None = None
    if (folder / SIGNATURE).is_file():
        try:
            signature = read_signature(folder / SIGNATURE)
            signature.check(trusted)
            key = signature.public
            whom = "the key that you gave" if trusted else "the key in the file; its owner was not checked (--key)"
            checks.append(Check("signature", True, f"Of {signature.when:%Y-%m-%d}, {signature.key}: {whom}."))
        except TerrineError as error:
            checks.append(Check("signature", False, str(error)))
    elif trusted is not None:
        checks.append(Check("signature", False, f"There is no {SIGNATURE}, so nothing is signed by {trusted}."))
    else:
        checks.append(Check("signature", None, "Not signed: the files may be consistent, but their origin is unknown."))
    if statement is not None and statement["approval"] is not None:
        checks.append(_approval(statement["approval"], key))
    checks += _signed_for_tools(folder, key)
    classes = _student(folder, signature, checks)
    if statement is not None and classes is not None:
        checks.append(_classes(statement, classes))
    if statement is not None and "files" in statement["mechanism"] and (folder / MODEL).is_dir():
        checks.append(_model(folder / MODEL, statement["mechanism"]["files"]))
    _files(statement_file, statement, signature, classes, checks)
    return checks


def _signed_for_tools(folder: Path, key: Ed25519PublicKey | None) -> Iterator[Check]:
    """Check the signatures for other tools that are present, with the key of the release's signature."""
    attested = (folder / ATTESTATION).is_file()
    for name in (ATTESTATION, MODEL_SIGNATURE):
        if (folder / name).is_file() and (name == ATTESTATION or (folder / STUDENT).is_dir()):
            try:
                detail = check_model_signature(folder) if name == MODEL_SIGNATURE else check_attestation(folder, key)
                yield Check(name, attested or None, detail if attested else f"{detail} Its key is not attested.")
            except (TerrineError, OSError, *_FAULTS) as error:
                yield Check(name, False, str(error) or f"It is damaged ({type(error).__name__}).")


def _figures(path: Path) -> tuple[dict[str, Any] | None, list[Check]]:
    """Recompute the statement's figures from its events, and its events from its mechanism."""
    try:
        statement = read_statement(path)
        event = from_json(statement["event"])
        detail = f"NOT PRIVATE, as it says: {statement['warning']}"
        if statement["private"]:
            detail = f"{statement['epsilon']:.4f} at δ = {statement['delta']:g}, recomputed from {_listed(event)}."
    except (TerrineError, *_FAULTS) as error:
        return None, [Check("ε", False, str(error))]
    return statement, [Check("ε", True, detail), _mechanism(statement, event)]


def _approval(given: Mapping[str, Any], site: Ed25519PublicKey | None) -> Check:
    """Check the signature of the person who approved the release, or of the site, whose key may be known."""
    try:
        approval = Approval(**given)
        approval.check(fingerprint(site) if site is not None and approval.signer == "site" else None)
    except (TerrineError, *_FAULTS) as error:
        return Check("approval", False, f"Its signature does not hold: {error}")
    whom = "the person's key" if approval.signer == "person" else "the site's key, for that person"
    told = (
        f"Of {approval.when:%Y-%m-%d} by the role '{approval.role}', {approval.key}: {whom}. Its owner was not checked."
    )
    return Check("approval", True, told)


def _mechanism(statement: Mapping[str, Any], event: Event) -> Check:
    try:
        expected = None if isinstance(event, NonPrivateEvent) else _expected(statement)
        halves = _exchange_is_two_moves(statement, event)
    except (TerrineError, *_FAULTS) as error:
        return Check("mechanism", False, f"Its parameters are invalid: {error}")
    if not halves:
        detail = (
            "Adding a unit costs less than half of replacing it, which is impossible: replacing is removing and adding."
        )
        return Check("mechanism", False, detail)
    if expected is None:
        detail = (
            "Not compared: its parameters do not determine its events, or it is unknown to this version of Terrine."
        )
        return Check("mechanism", None, detail)
    found = counts(event)
    agree = all(
        any(_alike(part, other) and count == times for other, times in found.items())
        for part, count in counts(expected).items()
    )
    detail = f"Its parameters give {_listed(expected)}" + ("." if agree else f", but it lists {_listed(event)}.")
    return Check("mechanism", agree, detail)


def _alike(one: Event, other: Event) -> bool:
    """Return whether two events are equal up to rounding."""
    ours, theirs = vars(one), vars(other)
    return type(one) is type(other) and all(
        math.isclose(value, theirs[name], rel_tol=1e-9) if isinstance(value, float) else value == theirs[name]
        for name, value in ours.items()
    )


def _expected(statement: Mapping[str, Any]) -> Event | None:
    """Return the event that a mechanism's parameters and the number of answers determine, or None.

    The parameters do not determine the event if a student's own label may be an answer, if a query is charged for no
    more answers than a unit can move and tests decide how many it has, or if this Terrine does not know the mechanism.
    Raises ValueError or another of `_FAULTS` if a parameter is missing.
    """
    described, queried, answered = statement["mechanism"], statement["queried"], statement["answered"]
    name, averaging, overlap = described.get("mechanism"), described.get("averaging"), described.get("overlap", 1)
    if described.get("discriminator") == "teacher" or (averaging is not None and "noise_multiplier" not in averaging):
        raise ValueError("what teachers tell without noise guarantees nothing")
    if type(overlap) is not int or overlap < 1:
        raise ValueError(f"overlap={overlap} is no number of institutions")
    if name == "labels" and statement["unit"] != "label":
        raise ValueError("randomised labels protect labels alone")
    if described.get("samples", answered) != answered:
        raise ValueError(f"{described['samples']} samples are not {answered} answers")
    match name:
        case "annotation":
            by_batch = {"batch": True, "sample": False}[described["norm"]]
            if by_batch and answered % described["iterations"]:
                raise ValueError("samples are no whole number of batches")
            count = described["iterations"] if by_batch else answered
            return RepeatedEvent(GaussianEvent(2.0, described["sigma"]), count)
        case "answers":
            return RepeatedEvent(RandomisedResponseEvent(described["epsilon"], described["top_k"]), answered)
        case "labels":
            return RandomisedResponseEvent(described["epsilon"], len(statement["answered_per_class"]))
    if not isinstance(name, str) or not name:
        raise ValueError("it has no name")
    if name == "imported":
        event, added = Training.described(described).events(statement["delta"])
        if statement.get("event_added") != (None if added is None else to_json(added)):
            raise ValueError("its event under add/remove does not follow from its sampling")
        return event
    if name not in MECHANISMS.names():
        return None
    kind, besides = MECHANISMS.of(name), compose(*_besides(described))
    parameters = set(kind.parameters())
    if by_noise := issubclass(kind, Sums) and "sigma" in described:  # parties agree on noise, not on a budget's share
        parameters = parameters - {"share"} | {"sigma_gradients"} if "rounds" in parameters else parameters
    if missing := sorted(parameters - described.keys()):
        raise ValueError(f"{', '.join(missing)} missing")
    if by_noise:
        schedule = RoundSchedule(
            **{key.name: described[key.name] for key in fields(RoundSchedule) if key.name in described}
        )
        return of_several(compose(besides, schedule.event), overlap)
    mechanism = parse_mechanism(described)
    if isinstance(mechanism, Sums):
        mu = mu_left(statement["epsilon_budget"], statement["delta"], besides)
        return compose(besides, of_several(mechanism.event(mu / overlap), overlap))
    assert isinstance(mechanism, Mechanism)
    if mechanism.informed:
        return None
    if mechanism.findings > 1 and (len(statement["answered_per_class"]) != 2 or queried > statement["queries"]):
        raise ValueError("answers about findings are yes or no")
    if mechanism.moved < mechanism.findings and answered < queried:
        return None
    return of_several(compose(besides, mechanism.cost(queried, answered)), overlap)


def _exchange_is_two_moves(statement: Mapping[str, Any], event: Event) -> bool:
    """Return whether each mechanism costs at least half as much under add/remove as under replacement."""
    if "event_added" not in statement:
        return True

    def by_noise(of: Event, times: int) -> dict[Any, float]:
        moves: dict[Any, float] = {}
        for part, count in counts(of).items():
            key: tuple[Any, ...] = (part, count)
            move = 1.0
            if isinstance(part, GaussianEvent):
                key, move = ("gaussian", part.sigma, count), times * part.sensitivity
            if isinstance(part, SampledGaussianEvent):
                key, move = ("sampled", part.sigma, part.rate, count), times * (part.plus + part.minus)
            moves[key] = max(moves.get(key, 0.0), move)
        return moves

    added = by_noise(from_json(statement["event_added"]), 2)
    return all(added.get(key, 0.0) >= move * (1 - 1e-9) for key, move in by_noise(event, 1).items())


def _besides(described: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events of further releases in a statement: a count of units, moments, and averages."""
    if (counted := described.get("counted")) is not None:
        yield count_of_units(counted["sigma"])
    if (moments := described.get("moments")) is not None:
        yield ClippedMean(moments["noise_multiplier"]).event
    if (noise := (averaging := described.get("averaging", {})).get("noise_multiplier")) is not None:
        centres, rounds = int(averaging["centred"]), averaging["averages"]
        vectors = averaging["vectors"] - centres
        if vectors != rounds:
            raise ValueError(f"{rounds} averages are not {vectors} vectors")
        yield RepeatedEvent(ClippedSum(averaging["clip"], noise).event, vectors)
        yield RepeatedEvent(ClippedSum(CENTRE_CLIP, noise).event, centres)


def _listed(event: Event) -> str:
    """Return an event as text, such as 8,000 × Gaussian(sensitivity 1.414, sigma 78)."""

    def part(one: Event) -> str:
        values = ", ".join(f"{name} {value:.4g}" for name, value in vars(one).items() if isinstance(value, int | float))
        return f"{type(one).__name__.removesuffix('Event')}({values})"

    return " + ".join(f"{count:,} × {part(one)}" for one, count in counts(event).items()) or "nothing"


def _student(folder: Path, signature: Signature | None, checks: list[Check]) -> list[str] | None:
    """Check the student beside a statement; return the names of its classes."""
    try:
        classes = student_classes(folder)
    except (TerrineError, *_FAULTS) as error:
        checks.append(Check("student", False, str(error)))
        return None
    if classes is None:
        checks.append(Check("student", None, "Not in the folder."))
        return None
    digest = file_digest(folder / "student" / MANIFEST)
    if signature is not None and signature.student != digest:
        checks.append(Check("student", False, "It differs from the signed one: its manifest has another digest."))
    else:
        whom = "of the statement's release" + (" and the signed one" if signature is not None else "")
        checks.append(Check("student", True, f"Every file matches its manifest; it is {whom}."))
    return classes


def _model(folder: Path, digests: Mapping[str, str]) -> Check:
    """Compare the files of another library's model with the statement."""
    there = {path.name: file_digest(path) for path in folder.glob("*") if path.is_file()}
    wrong = sorted(name for name in {*there, *digests} if there.get(name) != digests.get(name))
    if wrong:
        return Check("model", False, f"{', '.join(wrong)}: changed, added or missing.")
    return Check("model", True, f"The files are those of the statement: {', '.join(sorted(there))}.")


def _classes(statement: Mapping[str, Any], classes: list[str]) -> Check:
    """Compare the student's class names with those of the release."""
    if (task := statement["task"]) is None:
        return Check("classes", False, "The statement does not name the classes of the release.")
    if list(task["names"]) != classes:
        released, named = ", ".join(task["names"]), ", ".join(classes)
        return Check("classes", False, f"The student is for {named}, and the release is for {released}.")
    return Check("classes", True, f"The student and the release are for {', '.join(classes)}.")


def _files(
    path: Path,
    statement: dict[str, Any] | None,
    signature: Signature | None,
    classes: list[str] | None,
    checks: list[Check],
) -> None:
    """Compare the statement and every page with the signature, and pages with the statement."""
    signed = {} if signature is None else signature.files
    if signature is not None:
        detail = "The statement is the signed one."
        if signed.get(FIGURES) != file_digest(path):
            detail = f"{path.name} differs from the signed one: it has another digest."
        elif statement is not None and signature.release != statement["release_id"]:
            detail = f"The signature is for the release {signature.release[:16]}."
        checks.append(Check(path.name, detail.startswith("The statement"), detail))
    there = pages_in(path.parent)
    for name in there:
        try:
            checks.append(_page(path.parent / name, statement, signature, classes))
        except (TerrineError, *_FAULTS) as error:
            checks.append(Check(name, False, f"Not compared: {error}"))
    checks += [
        Check(name, None, "Signed, but not in the folder.") for name in sorted(signed.keys() - {*there, FIGURES})
    ]


def _page(
    path: Path, statement: dict[str, Any] | None, signature: Signature | None, classes: list[str] | None
) -> Check:
    mark, here = None, version("terrine")
    if signature is not None:
        if path.name not in signature.files:
            return Check(path.name, False, "Not signed.")
        if signature.files[path.name] != file_digest(path):
            return Check(path.name, False, "It differs from the signed one: it has another digest.")
        mark = SignatureMark(signature.when, signature.key)
    page = None if statement is None else draw_page(path.name, statement, classes, mark)
    if page is not None and path.read_bytes() == page.encode():
        return Check(path.name, True, "It follows from privacy.json" + (" and is signed." if signature else "."))
    if page is not None and (signature is None or signature.terrine == here):
        return Check(
            path.name,
            False,
            f"It differs from what Terrine {here} renders from {FIGURES}: it was changed, or another version wrote it.",
        )
    if signature is None:
        return Check(path.name, None, "It cannot be rendered again here and is not signed: do not rely on it.")
    return Check(path.name, True, "It is the signed one.")


def refuse_wrong(checks: list[Check]) -> None:
    """Raise ArtefactError for the first check that fails."""
    for check in checks:
        if check.holds is False:
            raise ArtefactError(f"{check.what}: {check.detail}")
