"""The common part of the HTTPS services of guardian and student party.

    PUT  /v1/TERMS/rounds/N/reports/PARTY      a report; the answer is a signed receipt   teacher party
    GET  /v1/TERMS/rounds/N/weights            weights of a round after the first         teacher party
    GET  /v1/TERMS/status                      state of the round, verdicts               every party
    POST /v1/TERMS/rounds/N/verify             openings of proofs, in batches             student party, to the guardian
    POST /v1/TERMS/rounds/N/close              the round is closed, noise is drawn        student party
    POST /v1/TERMS/rounds/N/base, blocks/B, opened/B, counts/B    the joint computation   student party
    POST /v1/TERMS/done                        the cost is charged                        student party

TERMS is the digest of the terms. A request is checked in this order: party and signature, size, digest of the body,
content. So only parties of the collaboration can make a service read a body. A party's signature of the terms is a
header of its reports (`Terrine-Acceptance`); the service stores it with the first report.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
from fastapi import FastAPI, HTTPException, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from tasks.parties.accuracy_terms import terms_from
from tasks.parties.config import PartyConfig
from tasks.parties.keys import (
    ACCEPTANCE_HEADER,
    RequestVerifier,
    SignatureError,
    acceptance_content,
    check_signature,
    make_receipt,
    sign,
)
from tasks.parties.store import Store, StoredFacts
from tasks.parties.terms import Role, Terms
from terrine.collaboration.protocol.agreement import LARGEST_BODY, Agreement
from terrine.collaboration.protocol.proof import accepted
from terrine.collaboration.protocol.report import Verification, check_report, report_size
from terrine.errors import InputError, TerrineError

log = logging.getLogger("terrine.party")

_BODY_SECONDS = 300.0  # within which a body must arrive
_TRANSCRIPT = 16
ACCEPTED, REFUSED = b"accepted", b"refused"


@dataclass
class Collaboration:
    """State of one collaboration at a service.

    Attributes:
        config: The party's configuration with these terms.
        digest: Digest of the terms.
        store: The service's state.
        lock: Lock that is held while the state of the rounds is changed.
        problem: Reason why the collaboration cannot continue, or None.
    """

    config: PartyConfig
    digest: str
    store: Store
    lock: Any = field(default_factory=RLock)
    problem: str | None = None
    _agreements: dict[int, Agreement] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.terms: Terms = self.config.terms
        self.roles: dict[str, Role] = self.terms.roles()
        self.whole: StoredFacts = self.store.facts(self.digest)

    def facts(self, number: int) -> StoredFacts:
        """Return the facts about a round."""
        return self.store.facts(self.digest, number)

    def agreement(self, number: int) -> Agreement:
        """Return the parameters of a round."""
        if number not in self._agreements:
            self._agreements[number] = self.terms.agreement(number)
        return self._agreements[number]

    def counted(self) -> dict[int, list[str]]:
        """Return the parties that are counted in each closed round."""
        return {int(number): json.loads(names) for number, names in self.whole.named("counted/").items()}

    def verdicts(self, number: int) -> dict[str, str]:
        """Return the state of each report of a round: received, accepted or refused."""
        facts = self.facts(number)
        verdicts = {name: verdict.decode() for name, verdict in facts.named("verdict/").items()}
        return dict.fromkeys(facts.named("receipt/"), "received") | verdicts

    def accepted(self, number: int) -> list[str]:
        """Return the parties whose reports of a round are accepted."""
        return [name for name, verdict in self.verdicts(number).items() if verdict == ACCEPTED.decode()]

    def refused(self, number: int) -> list[str]:
        """Return the parties whose reports of a round are refused."""
        return [name for name, verdict in self.verdicts(number).items() if verdict == REFUSED.decode()]

    def bodies(self, number: int, parties: list[str]) -> Any:
        """Yield (party, body) of these parties' reports, one at a time."""
        facts = self.facts(number)
        return ((party, facts.get(f"body/{party}")) for party in parties)

    def verify(self, number: int, party: str, own: Verification, other: Verification) -> bytes:
        """Compare both services' openings of a report's proof; store and return the verdict."""
        sums = self.agreement(number).reveal == "sums"
        same = own.transcript.tobytes() == other.transcript.tobytes()
        good = same and (sums or accepted(own.opened, other.opened))
        return self.facts(number).setdefault(f"verdict/{party}", ACCEPTED if good else REFUSED)


class Call(NamedTuple):
    """A request after authentication.

    Attributes:
        collaboration: The collaboration.
        caller: Party that signed the request.
        path: Its path.
        parameters: Parameters of the path: `number`, `block`, `party`.
        body: Its body.
        digest: SHA-256 of the body.
        acceptance: The caller's signature of the terms, if the request has it.
    """

    collaboration: Collaboration
    caller: str
    path: str
    parameters: dict[str, Any]
    body: bytes
    digest: str
    acceptance: str

    @property
    def number(self) -> int:
        """The round."""
        return int(self.parameters["number"])

    def json(self, kind: type) -> Any:
        """Return the body's JSON value, which must have this type.

        Raises:
            InputError: The body is not JSON, or of another type.
        """
        try:
            content = json.loads(self.body)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, kind):
            raise InputError(f"The body is not JSON, a {kind.__name__}.")
        return content


class Route(NamedTuple):
    """A resource: the roles that may call it, its handler, and the largest body."""

    method: str
    path: str
    callers: tuple[Role, ...]
    handle: Callable[[Call], bytes | dict[str, Any]]
    limit: int | None = LARGEST_BODY  # None: the size of the caller's report


ROUND = "rounds/{number:int}"


class PartyService(ABC):
    """Terms, reports, receipts and status of a service.

    Args:
        config: The party.

    Raises:
        TerrineError: Settings, keys, terms or ledger cannot be used.
    """

    second: bool
    """True for the student party, which gets the second share."""

    def __init__(self, config: PartyConfig) -> None:
        self.config, self.name, self._key = config, config.name, config.key
        self.store = Store(config.state)
        self._collaborations: dict[str, Collaboration] = {}
        digest = config.terms.digest
        self.store.register(digest, config.terms.public())
        own = sign(self._key, acceptance_content(digest))
        self.store.facts(digest).setdefault(f"accepted/{self.name}", own.encode())
        self.verifier = RequestVerifier(self.name)
        for collaboration in self.collaborations():
            self.check(collaboration)

    def collaborations(self) -> list[Collaboration]:
        """Return all registered collaborations, including those that `terrine party finish` has added."""
        for digest, content in self.store.terms().items():
            if digest not in self._collaborations:
                config = self.config.with_terms(terms_from(content))
                self._collaborations[digest] = Collaboration(config, digest, self.store)
        return list(self._collaborations.values())

    def find(self, digest: str) -> Collaboration:
        """Return a collaboration by the digest of its terms.

        Raises:
            HTTPException: The service has no collaboration with these terms.
        """
        if digest not in self._collaborations:
            self.collaborations()
        if digest not in self._collaborations:
            raise HTTPException(404, "This service takes no part in a collaboration with these terms. Compare them.")
        return self._collaborations[digest]

    @abstractmethod
    def check(self, collaboration: Collaboration) -> None:
        """Refuse a collaboration that cannot be completed, before it begins."""

    @abstractmethod
    def current_round(self, collaboration: Collaboration) -> int:
        """Return the number of the open round; `last + 1` after the last one."""

    def start(self) -> None:  # noqa: B027
        """Start background work."""

    @property
    def routes(self) -> list[Route]:
        """The resources."""
        return [
            Route("PUT", f"{ROUND}/reports/{{party}}", ("teacher",), self._upload, None),
            Route("GET", "status", ("teacher", "guardian", "student"), self.status, 0),
        ]

    def _upload(self, call: Call) -> dict[str, Any]:
        collaboration, number, party = call.collaboration, call.number, call.caller
        if call.parameters["party"] != party:
            raise HTTPException(403, f"{party} signed a request in the name of another party.")
        facts = collaboration.facts(number)
        receipt = facts.value(f"receipt/{party}")
        if receipt is None:
            self._check_open(collaboration, number, party)
            if collaboration.whole.get(f"accepted/{party}") is None:
                content = acceptance_content(collaboration.digest)
                check_signature(collaboration.terms.keys[party], content, call.acceptance)
            found = check_report(collaboration.agreement(number), party, call.body, second=self.second)
            receipt = make_receipt(self._key, self.name, call.path, party, call.digest)
            with collaboration.lock, self.store.transaction():
                self._check_open(collaboration, number, party)
                stored = facts.keep(f"receipt/{party}", receipt)
                if stored == receipt:
                    facts.setdefault(f"body/{party}", call.body)
                    facts.setdefault(f"proof/{party}", found.transcript.tobytes() + found.opened.tobytes())
                    collaboration.whole.setdefault(f"accepted/{party}", call.acceptance.encode())
                receipt = stored
            log.info("%s: round %d, report of %s received", self.name, number, party)
        if receipt["sha256"] != call.digest:
            raise HTTPException(
                409,
                f"{party} uploaded another report for this round at {receipt['at']}, and that one counts. A report "
                "cannot be replaced: restore the party's state folder, or agree on another edition.",
            )
        return dict(receipt)

    def _check_open(self, collaboration: Collaboration, number: int, party: str) -> None:
        """Refuse a report for a round that is not open."""
        current = self.current_round(collaboration)
        if number > current:
            raise HTTPException(409, f"Round {number} is not open yet; round {current} is.")
        if number < current or collaboration.whole.get(f"counted/{number}") is not None:
            raise HTTPException(
                409,
                f"Round {number} is closed: the report of {party} came too late and is not counted. Noise and "
                "accounting are as agreed. To be counted, take part in another edition.",
            )

    def verification(self, collaboration: Collaboration, number: int, party: str) -> Verification | None:
        """Return this service's opening of a report's proof; None without a report."""
        stored = collaboration.facts(number).get(f"proof/{party}")
        return None if stored is None else as_verification(stored)

    def status(self, call: Call) -> dict[str, Any]:
        """Return the state of a collaboration as its parties may see it."""
        collaboration = call.collaboration
        number, last = self.current_round(collaboration), collaboration.terms.last
        number = min(number, last)
        counted, record = collaboration.counted(), collaboration.whole.value("record")
        state = "complete" if record else "stopped" if collaboration.problem else "open"
        if state == "open" and number in counted:
            state = "computing"
        about = {
            "party": self.name,
            "round": number,
            "last": last,
            "state": state,
            "reports": collaboration.verdicts(number),
            "counted": {str(key): names for key, names in counted.items()},
            "accepted": sorted(collaboration.whole.named("accepted/")),
            "problem": collaboration.problem,
        }
        return about | ({} if collaboration.roles[call.caller] == "teacher" else {"record": record})


def as_verification(opening: bytes) -> Verification:
    """Decode the opening of a proof: 16 bytes of transcript, then uint64 [3]."""
    if len(opening) != _TRANSCRIPT + 24:
        raise InputError("The opening of a proof has 40 bytes.")
    return Verification(np.frombuffer(opening, np.uint8, _TRANSCRIPT), np.frombuffer(opening, "<u8", 3, _TRANSCRIPT))


def make_application(service: PartyService) -> FastAPI:
    """Return the ASGI application of a service."""
    app = FastAPI(title="terrine party", docs_url=None, redoc_url=None, openapi_url=None)
    for route in service.routes:
        path = f"/v1/{{collaboration}}/{route.path}"
        app.add_api_route(path, _make_endpoint(service, route), methods=[route.method], response_model=None)
    return app


def _make_endpoint(service: PartyService, route: Route) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        try:
            return await _answer(service, route, request)
        except ClientDisconnect as error:
            raise HTTPException(400, "The request was cut off.") from error
        except TimeoutError as error:
            raise HTTPException(408, f"The body did not arrive within {_BODY_SECONDS:g} s.") from error
        except SignatureError as error:
            raise HTTPException(401, str(error)) from error
        except InputError as error:
            raise HTTPException(400, str(error)) from error
        except TerrineError as error:
            raise HTTPException(409, str(error)) from error
        except (OSError, sqlite3.Error) as error:
            log.error("%s: %s", service.name, error)
            raise HTTPException(503, "The service cannot store anything at present.") from error

    return answer


async def _answer(service: PartyService, route: Route, request: Request) -> Response:
    parameters = dict(request.path_params)
    collaboration = await run_in_threadpool(service.find, parameters.pop("collaboration"))
    terms, path = collaboration.terms, request.url.path
    caller, digest = service.verifier.check(terms.keys, request.headers, request.method, path)
    if collaboration.roles[caller] not in route.callers:
        raise HTTPException(403, f"{caller} is no party that may do this.")
    if parameters.get("number", 0) > terms.last:
        raise HTTPException(404, f"There is no round {parameters['number']}.")
    limit = route.limit
    if limit is None:
        limit = report_size(collaboration.agreement(parameters["number"]), caller)
    body = bytearray()
    async with asyncio.timeout(_BODY_SECONDS):
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise HTTPException(413, f"The body has more than the {limit:,} bytes that are expected here.")
    if hashlib.sha256(body).hexdigest() != digest:
        raise HTTPException(400, "The body was damaged on the way: its SHA-256 is not the signed one. Send it again.")
    acceptance = request.headers.get(ACCEPTANCE_HEADER, "")
    call = Call(collaboration, caller, path, parameters, bytes(body), digest, acceptance)
    answer = await run_in_threadpool(route.handle, call)
    if isinstance(answer, bytes):
        return Response(answer, media_type="application/octet-stream")
    return Response(json.dumps(answer), media_type="application/json")
