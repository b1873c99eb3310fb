"""The door in front of the web service: who may ask, how much at a time, and what a refusal looks like.

It lets in bodies up to a limit, reads and drops the rest of a larger one (so that the client gets to see the answer),
asks for a key where there is one, counts, and makes every refusal

    {"error_code": "...", "message": "a sentence"}

What many slow or large requests can hold is bounded: a body that is still coming lies in a temporary file but for its
first `IN_MEMORY` bytes and has `BODY_SECONDS` to arrive, and of the whole ones `AT_ONCE` are answered at a time.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from tempfile import SpooledTemporaryFile
from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter, Histogram

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

IN_MEMORY, AT_ONCE, BODY_SECONDS = 2**16, 2, 60.0
OPEN = ("/ping", "/health")
"""What a machine that watches the service may ask without the key."""

_DRAIN_BYTES, _DRAIN_SECONDS = 2**28, 10.0
_CODES = {
    400: "BAD_REQUEST", 401: "UNAUTHORIZED", 404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 408: "TOO_SLOW",
    413: "TOO_LARGE", 415: "UNSUPPORTED_TYPE",
}  # fmt: skip


class Door:
    """Limits what comes in, and makes a sentence of every refusal that goes out.

    hint: how POST /invocations is asked, a sentence. key: what whoever asks must show: as a bearer's token, or as the
    password that a browser asks for. registry: where requests are counted.
    """

    def __init__(self, app: FastAPI, most_bytes: int, hint: str, key: str | None, registry: CollectorRegistry) -> None:
        self.app, self.most_bytes, self.hint, self.key = app, most_bytes, hint, key
        self._routes = {getattr(route, "path", None) for route in app.routes}
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._requests = Counter("terrine_requests", "Requests by answer.", ["route", "status"], registry=registry)
        self._seconds = Histogram("terrine_seconds", "Seconds until the answer.", ["route"], registry=registry)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 500

        async def counted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._admit(scope, receive, counted)
        finally:
            route = scope["path"] if scope["path"] in self._routes else "other"
            self._requests.labels(route, status).inc()
            self._seconds.labels(route).observe(time.monotonic() - began)

    async def _admit(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if self.key is not None and scope["path"] not in OPEN and not _shows(self.key, headers):
            await _refuse(send, 401, "Show the key of this service: curl -H 'authorization: Bearer KEY'.")
            return
        if scope["path"] == "/invocations" and scope["method"] == "POST":
            content = headers.get("content-type", "").partition(";")[0].strip().lower()
            if content != "application/json":
                await _drain(receive, 0)
                await _refuse(
                    send, 415, f"POST /invocations takes application/json, not '{content or 'nothing'}'. {self.hint}"
                )
                return
        with SpooledTemporaryFile(IN_MEMORY) as kept:
            try:
                size = await asyncio.wait_for(self._receive(headers, receive, kept), BODY_SECONDS)
            except TimeoutError:
                await _refuse(send, 408, f"The body did not arrive within {BODY_SECONDS:g} s. Send less at a time.")
                return
            if size is None:
                megabytes = self.most_bytes / 1e6
                await _refuse(
                    send,
                    413,
                    f"The body is larger than {megabytes:,.0f} MB. Send fewer images at a time, or as .npy to /images.",
                )
            elif size == 0:
                await self._pass_on(scope, b"", receive, send)
            else:
                async with self._turns:
                    kept.seek(0)
                    await self._pass_on(scope, kept.read(), receive, send)

    async def _receive(
        self, headers: dict[str, str], receive: Receive, kept: SpooledTemporaryFile[bytes]
    ) -> int | None:
        """Write the whole body to `kept`; return its size, or None for one above the limit, which has been dropped."""
        declared = headers.get("content-length", "")
        if declared.isdigit() and int(declared[:20]) > self.most_bytes:
            await _drain(receive, 0)
            return None
        total = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return 0
            total += len(part := message.get("body", b""))
            if total > self.most_bytes:
                if message.get("more_body"):
                    await _drain(receive, total)
                return None
            kept.write(part)
            if not message.get("more_body"):
                return total

    async def _pass_on(self, scope: MutableMapping[str, Any], body: bytes, receive: Receive, send: Send) -> None:
        given = False
        refusal: dict[str, Any] = {}

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def hold_refusals(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                refusal.update(status=message["status"], body=b"")
            elif refusal:
                refusal["body"] += message.get("body", b"")
            else:
                await send(message)

        failure: Exception | None = None
        try:
            await self.app(scope, replay, hold_refusals)
        except RecursionError:
            refusal.update(status=400, body=b'{"message": "The JSON is nested too deeply."}')
        except ValueError as error:  # what the model raises does not come here; its door is MLflow's reading of JSON
            if scope["path"] != "/invocations":
                failure = error
            refusal.update(status=400, body=json.dumps({"message": f"The JSON cannot be read: {error}"}).encode())
        except Exception as error:  # the server's own middleware has answered 500 and raises it once more, for the log
            failure = error
        if refusal:
            status = refusal["status"]
            if status >= 500:
                await _refuse(send, status, "The server failed on this request; its log says why.")
            else:
                await _refuse(send, status, self._sentence(scope["path"], refusal["body"]))
        if failure is not None:
            raise failure

    def _sentence(self, path: str, body: bytes) -> str:
        # MLflow puts the request's data, whatever it holds, before what is wrong with it, or after it.
        text = _message(body).split("\nInput:")[0]
        if "input is a valid JSON formatted string" in text or "input is a valid UTF-8" in text:
            text = "The body is not valid JSON"
        elif "inhomogeneous shape" in text:
            text = "The inputs are lists of different lengths, and all images must have one shape"
        elif "exactly one of the input fields" in text:
            text = "The body is not a JSON object with the field inputs"
        text = re.sub(r"\s+", " ", text.rsplit("Error: ", 1)[-1]).strip()[:600]
        return f"{text.rstrip('.')}. {self.hint}" if path == "/invocations" else text


def _message(body: bytes) -> str:
    text = body.decode("utf-8", "replace")
    try:
        values = json.loads(text)
    except ValueError:
        return text
    found = values.get("message", values.get("detail", text)) if isinstance(values, dict) else text
    return found if isinstance(found, str) else json.dumps(found)


async def _drain(receive: Receive, total: int) -> None:
    """Read and drop what a client still sends: one that is cut off in the middle never sees the answer."""
    end = time.monotonic() + _DRAIN_SECONDS
    while total < _DRAIN_BYTES and (left := end - time.monotonic()) > 0:
        try:
            message = await asyncio.wait_for(receive(), left)
        except TimeoutError:
            return
        total += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return


def _shows(key: str, headers: dict[str, str]) -> bool:
    """Whether a request shows the key."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given).decode().partition(":")[2]
        except ValueError:
            return False
    elif scheme.lower() != "bearer":
        return False
    return secrets.compare_digest(given.strip().encode(), key.encode())


async def _refuse(send: Send, status: int, sentence: str) -> None:
    # In ASCII: half a surrogate pair, which JSON may hold, is no UTF-8.
    body = json.dumps({"error_code": _CODES.get(status, "ERROR"), "message": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="terrine"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
