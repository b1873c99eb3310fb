"""ASGI middleware of the HTTP service: API key, limits on request bodies, and refusals as JSON.

A refusal is `{"error_code": "...", "message": "a sentence"}` (`refusal`).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http import HTTPStatus
from tempfile import SpooledTemporaryFile
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

IN_MEMORY, AT_ONCE, BODY_SECONDS = 2**16, 2, 60.0
OPEN = ("/ping", "/health")
"""Routes for monitoring, which need no key."""

_DRAIN_BYTES = 2**28


class RequestGuard:
    """Check the API key and receive the whole body before the application sees a request.

    A body that is still arriving is kept in a temporary file except for its first `IN_MEMORY` bytes, and has
    `BODY_SECONDS` to arrive. At most `AT_ONCE` requests with a body are answered at a time. The rest of a body that is
    too large is read and dropped: a client that is cut off while it sends never sees the response.

    Args:
        app: The application.
        most_bytes: Largest body, in bytes.
        key: API key, sent as a bearer token or as the password of basic authentication; None: no key.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], most_bytes: int, key: str | None) -> None:
        self.app, self.most_bytes, self.key = app, most_bytes, key
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it with status 401, 408 or 413."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self.key is not None and scope["path"] not in OPEN and not _authorized(self.key, Headers(scope=scope)):
            answer = refusal(401, "Send the key of this service: curl -H 'authorization: Bearer KEY'.")
            answer.headers["www-authenticate"] = 'Basic realm="terrine"'
            await answer(scope, receive, send)
            return
        with SpooledTemporaryFile(IN_MEMORY) as body:
            try:
                size = await asyncio.wait_for(self._spool(receive, body), BODY_SECONDS)
            except TimeoutError:
                text = f"The body did not arrive within {BODY_SECONDS:g} s. Send less at a time."
                await refusal(408, text)(scope, receive, send)
                return
            if size > self.most_bytes:
                text = f"The body is larger than {self.most_bytes / 1e6:,.0f} MB. Send less at a time; images as .npy."
                await refusal(413, text)(scope, receive, send)
                return
            async with self._turns if size else contextlib.nullcontext():
                body.seek(0)
                messages: list[Message] = [{"type": "http.request", "body": body.read(), "more_body": False}]

                async def received() -> Message:
                    return messages.pop() if messages else await receive()

                await self.app(scope, received, send)

    async def _spool(self, receive: Receive, body: SpooledTemporaryFile[bytes]) -> int:
        """Write a body to a file up to the size limit, and return its full size."""
        total = 0
        while True:
            message = await receive()
            part = message.get("body", b"")
            total += len(part)
            if total <= self.most_bytes:
                body.write(part)
            if not message.get("more_body") or total > _DRAIN_BYTES:
                return total


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response that refuses a request; in ASCII, because JSON may hold half a surrogate pair."""
    body = json.dumps({"error_code": HTTPStatus(status).name, "message": message})
    return Response(body, status, headers, media_type="application/json")


def _authorized(key: str, headers: Headers) -> bool:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given).decode().partition(":")[2]
        except ValueError:
            return False
    elif scheme.lower() != "bearer":
        return False
    return secrets.compare_digest(given.strip().encode(), key.encode())
