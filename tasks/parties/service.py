"""The HTTPS services of guardian and student party.

    PUT  /v1/TERMS/acceptances/PARTY           signature of the terms                     every party
    PUT  /v1/TERMS/rounds/N/reports/PARTY      a report; the answer is a signed receipt   teacher party
    GET  /v1/TERMS/rounds/N/weights            weights of a round after the first         teacher party
    GET  /v1/TERMS/status                      state of the round, verdicts               every party
    POST /v1/TERMS/rounds/N/verify             openings of proofs, in batches             student party, to the guardian
    POST /v1/TERMS/rounds/N/close              the round is closed, noise is drawn        student party
    POST /v1/TERMS/rounds/N/base, blocks/B, opened/B, counts/B    the joint computation   student party
    POST /v1/TERMS/done                        the cost is charged                        student party

TERMS is the digest of the terms. A request is checked in this order: party and signature, size, digest of the body,
content. So only parties of the collaboration can make a service read a body.
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
from functools import cached_property
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from tasks.parties.accuracy_terms import terms_from
from tasks.parties.config import PartyConfig
from tasks.parties.keys import (
    CERTIFICATE,
    TLS_KEY,
    RequestVerifier,
    SignatureError,
    acceptance_content,
    check_signature,
    receipt_of,
    sign,
)
from tasks.parties.store import Store, StoredFacts, StoredReport
from tasks.parties.terms import Role, Terms
from terrine.collaboration.protocol.agreement import LARGEST_BODY, Agreement
from terrine.collaboration.protocol.report import check_report, report_size
from terrine.errors import InputError, TerrineError

log = logging.getLogger("terrine.party")

_SLOWEST = 300.0  # seconds in which a body must arrive
_MOST_CLIENTS = 512
ACCEPTED, REFUSED = b"accepted", b"refused"


@dataclass
class Collaboration:
    """One agreement at a service.

    Attributes:
        config: The party's configuration with these terms.
        digest: Digest of the terms.
        store: Where its state is.
        lock: Held while the state of its rounds is changed.
        problem: Why it cannot continue, or None.
    """

    config: PartyConfig
    digest: str
    store: Store
    lock: Any = field(default_factory=RLock)
    problem: str | None = None
    _agreements: dict[int, Agreement] = field(default_factory=dict)

    @property
    def terms(self) -> Terms:
        """The terms."""
        return self.config.terms

    @cached_property
    def whole(self) -> StoredFacts:
        """Facts about the whole collaboration."""
        return self.store.facts(self.digest)

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
        """Return the state of each report of a round."""
        states = {report.party: "received" for report in self.store.reports(self.digest, number)}
        return states | {name: verdict.decode() for name, verdict in self.facts(number).named("verdict/").items()}


class Call(NamedTuple):
    """An authenticated request.

    Attributes:
        collaboration: What it is about.
        caller: The party that signed it.
        path: Its path.
        parameters: Parameters of the path: `number`, `block`, `party`.
        body: Its body.
        digest: SHA-256 of the body.
    """

    collaboration: Collaboration
    caller: str
    path: str
    parameters: dict[str, Any]
    body: bytes
    digest: str

    @property
    def number(self) -> int:
        """The round."""
        return int(self.parameters["number"])

    def json(self) -> Any:
        """Return the body's JSON.

        Raises:
            InputError: It is none.
        """
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise InputError("The body is no JSON.") from error


class Route(NamedTuple):
    """A resource: who may call it, how large a body may be, and what answers."""

    method: str
    path: str
    callers: frozenset[Role]
    handle: Callable[[Call], bytes | dict[str, Any]]
    limit: int | Callable[[Collaboration, dict[str, Any], str], int] = LARGEST_BODY


EVERYBODY: frozenset[Role] = frozenset({"teacher", "guardian", "student"})
STUDENT: frozenset[Role] = frozenset({"student"})
TEACHER: frozenset[Role] = frozenset({"teacher"})
ROUND = "rounds/{number:int}"


class PartyService(ABC):
    """What guardian and student party have in common: terms, acceptances, reports, receipts, status.

    Args:
        config: The party.

    Raises:
        TerrineError: Settings, keys, terms or a ledger that cannot be used.
    """

    second: bool
    """Whether this is the student party."""

    def __init__(self, config: PartyConfig) -> None:
        self.config, self.name, self._key = config, config.name, config.key
        self.store = Store(config.state)
        self._collaborations: dict[str, Collaboration] = {}
        self.store.register(config.terms.digest, config.terms.public())
        self.store.accept(config.terms.digest, self.name, sign(self._key, acceptance_content(config.terms.digest)))
        self.verifier = RequestVerifier(self.name)
        for collaboration in self.collaborations():
            self.check(collaboration)

    def collaborations(self) -> list[Collaboration]:
        """Return all collaborations that are registered, those that `terrine party finish` added meanwhile too."""
        for digest, content in self.store.terms().items():
            if digest not in self._collaborations:
                config = self.configured(terms_from(content))
                self._collaborations[digest] = Collaboration(config, digest, self.store)
        return list(self._collaborations.values())

    def configured(self, terms: Terms) -> PartyConfig:
        """Return the party's configuration for terms."""
        return self.config.model_copy(update={"terms": terms})

    @abstractmethod
    def check(self, collaboration: Collaboration) -> None:
        """Refuse a collaboration that cannot be completed, before it begins."""

    def find(self, digest: str) -> Collaboration:
        """Return a collaboration by the digest of its terms.

        Raises:
            HTTPException: It is unknown.
        """
        for _ in range(2):
            if digest in self._collaborations:
                return self._collaborations[digest]
            self.collaborations()
        raise HTTPException(404, "This service takes no part in a collaboration with these terms. Compare the terms.")

    @abstractmethod
    def round_of(self, collaboration: Collaboration) -> int:
        """Return the round that takes reports; `last + 1` if none does any more."""

    def start(self) -> None:  # noqa: B027
        """Start what a service does without being asked."""

    @property
    def routes(self) -> list[Route]:
        """The resources."""
        return [
            Route("PUT", "acceptances/{party}", EVERYBODY, self._accept, 256),
            Route("PUT", f"{ROUND}/reports/{{party}}", TEACHER, self._upload, _report_limit),
            Route("GET", "status", EVERYBODY, lambda call: self.status(call.collaboration, call.caller), 0),
        ]

    def _accept(self, call: Call) -> dict[str, Any]:
        self._own(call)
        signature = call.body.decode("ascii", "replace")
        check_signature(
            call.collaboration.terms.keys[call.caller], acceptance_content(call.collaboration.digest), signature
        )
        self.store.accept(call.collaboration.digest, call.caller, signature)
        return {"accepted": sorted(self.store.accepted(call.collaboration.digest))}

    def _own(self, call: Call) -> None:
        if call.parameters["party"] != call.caller:
            raise HTTPException(403, f"{call.caller} signed a request in the name of another party.")

    def _upload(self, call: Call) -> dict[str, Any]:
        self._own(call)
        collaboration, number = call.collaboration, call.number
        with collaboration.lock:
            stored = self.store.report(collaboration.digest, number, call.caller)
            if stored is None:
                self._check_open(collaboration, number, call.caller)
        if stored is None:
            agreement = collaboration.agreement(number)
            verification = check_report(agreement, call.caller, call.body, second=self.second)
            receipt = receipt_of(self._key, self.name, call.path, call.caller, call.digest)
            report = StoredReport(
                call.caller, call.digest, verification.transcript.tobytes(), verification.opened.tobytes(), receipt
            )
            with collaboration.lock:
                self._check_open(collaboration, number, call.caller)
                stored = self.store.add_report(collaboration.digest, number, report, call.body)
            log.info("%s: round %d, report of %s received", self.name, number, call.caller)
        if stored.sha256 != call.digest:
            raise HTTPException(
                409,
                f"{call.caller} uploaded another report for this round at {stored.receipt['at']}, and that one counts. "
                "A report cannot be replaced: restore the party's state folder, or agree on another edition.",
            )
        return stored.receipt

    def _check_open(self, collaboration: Collaboration, number: int, party: str) -> None:
        """Refuse a report for a round that takes none, or of a party that has not accepted the terms."""
        current = self.round_of(collaboration)
        if number > current or number > collaboration.terms.last:
            raise HTTPException(409, f"Round {number} is not open yet; round {current} is.")
        if number < current or number in collaboration.counted():
            raise HTTPException(
                409,
                f"Round {number} is closed: the report of {party} came too late and is not counted. Noise and "
                "accounting are as agreed. To be counted, take part in another edition.",
            )
        if party not in self.store.accepted(collaboration.digest):
            raise HTTPException(409, f"{party} has not accepted the terms at this service.")

    def status(self, collaboration: Collaboration, caller: str) -> dict[str, Any]:
        """Return the state of a collaboration as its parties may see it."""
        number = min(self.round_of(collaboration), collaboration.terms.last)
        record = collaboration.whole.value("record")
        state = "complete" if record else "stopped" if collaboration.problem else "open"
        if state == "open" and number in collaboration.counted():
            state = "computing"
        about = {
            "party": self.name,
            "round": number,
            "last": collaboration.terms.last,
            "state": state,
            "reports": collaboration.verdicts(number),
            "counted": {str(key): names for key, names in collaboration.counted().items()},
            "accepted": sorted(self.store.accepted(collaboration.digest)),
            "problem": collaboration.problem,
        }
        return about | ({} if collaboration.terms.roles()[caller] == "teacher" else {"record": record})


def _report_limit(collaboration: Collaboration, parameters: dict[str, Any], caller: str) -> int:
    number = int(parameters["number"])
    return report_size(collaboration.agreement(number), caller) if number <= collaboration.terms.last else 0


def application(service: PartyService) -> FastAPI:
    """Return the ASGI application of a service."""
    app = FastAPI(title="terrine party", docs_url=None, redoc_url=None, openapi_url=None)
    for route in service.routes:
        app.add_api_route(
            f"/v1/{{collaboration}}/{route.path}",
            _endpoint(service, route),
            methods=[route.method],
            response_model=None,
        )
    return app


def _endpoint(service: PartyService, route: Route) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        try:
            return await _answer(service, route, request)
        except HTTPException:
            raise
        except ClientDisconnect as error:
            raise HTTPException(400, "The request was cut off.") from error
        except TimeoutError as error:
            raise HTTPException(408, f"The body did not arrive within {_SLOWEST:g} s.") from error
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
    if terms.roles()[caller] not in route.callers:
        raise HTTPException(403, f"{caller} is no party that may do this.")
    if parameters.get("number", 0) > terms.last:
        raise HTTPException(404, f"There is no round {parameters['number']}.")
    limit = route.limit if isinstance(route.limit, int) else route.limit(collaboration, parameters, caller)
    body = bytearray()
    async with asyncio.timeout(_SLOWEST):
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise HTTPException(413, f"The body has more than the {limit:,} bytes that are expected here.")
    if hashlib.sha256(body).hexdigest() != digest:
        raise HTTPException(400, "The body was damaged on the way: its SHA-256 is not the signed one. Send it again.")
    call = Call(collaboration, caller, path, parameters, bytes(body), digest)
    answer = await run_in_threadpool(route.handle, call)
    if isinstance(answer, bytes):
        return Response(answer, media_type="application/octet-stream")
    return Response(json.dumps(answer), media_type="application/json")


def build(config: PartyConfig) -> PartyService:
    """Return the service of a party's role."""
    if config.role == "guardian":
        from tasks.parties.guardian import GuardianService

        return GuardianService(config)
    from tasks.parties.student import StudentService

    return StudentService(config)


def serve(config: PartyConfig) -> None:
    """Run the service of a guardian or a student party until it is stopped.

    Raises:
        TerrineError: Settings, keys, terms or a ledger that cannot be used; another process with this state.
    """
    from terrine.locks import locked

    assert config.listen is not None
    host, _, port = config.listen.rpartition(":")
    tls: dict[str, Any] = {}
    if config.tls:
        tls = {"ssl_keyfile": config.folder / TLS_KEY, "ssl_certfile": config.folder / CERTIFICATE}
        if missing := [path for path in tls.values() if not path.is_file()]:
            raise InputError(f"{missing[0]} is missing. Create it with `terrine party key --url`, or copy it there.")
    config.state.mkdir(parents=True, exist_ok=True)
    try:
        with locked(config.state / "serve.lock", 5.0):
            service = build(config)
            service.start()
            log.info("%s: serving %s at %s", service.name, config.terms.called, config.listen)
            uvicorn.run(
                application(service),
                host=host,
                port=int(port),
                log_level="warning",
                access_log=False,
                server_header=False,
                limit_concurrency=_MOST_CLIENTS,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=5,
                **tls,
            )
    except TimeoutError as error:
        raise InputError(f"Another process serves {config.state}. Stop it first.") from error


def main() -> None:
    """Serve a party of a trial: CONFIG, host:port, and for a student party the guardian's URL."""
    import sys
    from pathlib import Path

    from tasks.parties.config import read_party

    path, listen, *urls = sys.argv[1:]
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    log.setLevel(logging.INFO)
    try:
        changes = {"listen": listen, "urls": {"guardian": urls[0]} if urls else {}}
        serve(read_party(Path(path)).model_copy(update=changes))
    except TerrineError as error:
        sys.exit(f"Error: {error}")


def opened_numbers(opened: bytes) -> np.ndarray:
    """Return the stored opening of a proof, uint64 [3]."""
    return np.frombuffer(opened, np.uint64)


if __name__ == "__main__":
    main()
