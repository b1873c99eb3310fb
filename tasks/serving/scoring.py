"""The web service of a student: MLflow's scoring server, with a door in front of it.

MLflow's server answers POST /invocations, GET /ping, /health and /version, and everything that speaks to an MLflow
model speaks to it. Left alone it reads a body of any size into memory, echoes the request and a stack trace in its
errors, and fails with a 500 on a missing content type or on JSON nested too deeply. The door lets in bodies up to a
limit, reads and drops the rest of a larger one (so that the client gets to see the answer), and makes every refusal

    {"error_code": "...", "message": "a sentence"}

Routes are added, because images as JSON are ten times their size: POST /images takes one encoded image, image files as
a form's fields (multipart), or a stack as a .npy file (uint8, or floats in [0, 1]); GET /model says what the student is
and what its privacy statement says. GET / is a page on which an image is dropped, GET /docs one with the routes; both
load nothing from anywhere.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse

from tasks.reports.pages import render
from tasks.serving.openapi import company, in_short, openapi, service_title
from tasks.serving.rows import add_rows
from terrine.data.image_files import decode_image
from terrine.deployment.model import StudentModel
from terrine.deployment.rows import TableStudent
from terrine.errors import InputError, first_line

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

MOST_PIXELS = 25_000_000
"""An encoded image of more is not decoded: a few kilobytes can hold gigabytes of pixels."""

_DRAIN_BYTES, _DRAIN_SECONDS = 2**28, 10.0
_FORM = "multipart/form-data"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src blob:; connect-src 'self'"
"""What a browser lets our pages do: nothing but what is in them, and asking this service."""

_CODES = {400: "BAD_REQUEST", 404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 413: "TOO_LARGE", 415: "UNSUPPORTED_TYPE"}


def scoring_app(
    mlflow_model: Any, student: StudentModel | TableStudent, *, most_bytes: int, about: dict[str, Any]
) -> Application:
    """Return the ASGI application that serves a student.

    mlflow_model: the loaded pyfunc model, which answers /invocations; student: what it answers with. most_bytes: the
    largest body of a request. about: what GET /model returns.
    """
    from mlflow.pyfunc import scoring_server

    app: FastAPI = scoring_server.init(mlflow_model)
    # FastAPI's own pages load their scripts from elsewhere.
    own = {"/docs", "/docs/oauth2-redirect", "/redoc"}
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) not in own]

    def page(template: str, values: dict[str, Any]) -> HTMLResponse:
        return HTMLResponse(render(template, values), headers={"content-security-policy": _POLICY})

    values = {
        "title": service_title(about),
        "privacy": about.get("privacy"),
        "class_names": student.class_names,
        "columns": about.get("columns"),
    }

    @app.get("/", include_in_schema=False)
    async def front() -> HTMLResponse:
        return page("service.html", values)

    @app.get("/model")
    async def model() -> dict[str, Any]:
        return about

    if isinstance(student, TableStudent):
        values["hint"] = add_rows(app, student)
        return _Door(app, most_bytes, values["hint"])

    document = openapi(student, about, most_bytes)
    app.title, app.version = document["info"]["title"], document["info"]["version"]
    app.openapi = lambda: document  # type: ignore[method-assign]
    channels, *sides = student.shape
    values |= {
        "shape": f"{' x '.join(map(str, sides))} pixels, {'grey' if channels == 1 else 'colour'}",
        "company": f"One image alone and the same image in company get {company(student)}.",
        "statistics": student.statistics,
    }

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return page("service_docs.html", {"document": document, "as_json": _indented})

    @app.post("/images")
    async def images(request: Request) -> dict[str, Any]:
        body = await request.body()
        content = request.headers.get("content-type", "")
        try:
            names, probabilities = await asyncio.to_thread(_answer, body, content, student)
        except InputError as error:
            raise HTTPException(400, str(error)) from error
        return {
            "predictions": probabilities.tolist(),
            "labels": [student.class_names[number] for number in probabilities.argmax(axis=1)],
            "class_names": student.class_names,
            "files": names,
            "privacy": in_short(about),
        }

    hint = f'Send {{"inputs": [...]}} with floats in [0, 1] of shape {["images", *student.shape]}.'.replace("'", "")
    return _Door(app, most_bytes, hint)


def _indented(values: Any) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False)


def _answer(body: bytes, content: str, student: StudentModel) -> tuple[list[str | None], np.ndarray]:
    """Return the names that images came with and the answers, float32 [images, classes]."""
    kind = content.partition(";")[0].strip().lower()
    names: list[str | None]
    if kind == "application/x-npy":
        answers = student.predict(_read_npy(body))
        return [None] * len(answers), answers
    if kind == _FORM:
        files = _read_form(body, content)
        names, encoded = [name for name, _ in files], [data for _, data in files]
    elif kind.startswith("image/"):
        names, encoded = [None], [body]
    else:
        raise HTTPException(
            415,
            "POST /images takes image/* (one image), multipart/form-data (image files) or application/x-npy (a stack), "
            f"not '{kind or 'nothing'}'.",
        )
    return names, student.predict(np.stack([_decode(*pair, student) for pair in zip(names, encoded, strict=True)]))


def _decode(name: str | None, data: bytes, student: StudentModel) -> np.ndarray:
    try:
        return decode_image(data, size=student.size, channels=student.channels, most_pixels=MOST_PIXELS)
    except InputError as error:
        raise error if name is None else InputError(f"{name[:80]}: {error}") from error


def _read_npy(body: bytes) -> np.ndarray:
    try:
        return np.load(io.BytesIO(body), allow_pickle=False)
    except (ValueError, EOFError, OSError, SyntaxError) as error:
        raise InputError(
            f"The body is no .npy file of numbers ({first_line(error)}). Write it with numpy.save."
        ) from error


def _read_form(body: bytes, content: str) -> list[tuple[str | None, bytes]]:
    """Return name and bytes of every file in a form, in order. Raises InputError when there is none."""
    from werkzeug.exceptions import RequestEntityTooLarge
    from werkzeug.formparser import MultiPartParser
    from werkzeug.http import parse_options_header

    boundary = parse_options_header(content)[1].get("boundary", "")
    try:
        _, files = MultiPartParser().parse(io.BytesIO(body), boundary.encode("latin-1", "replace"), len(body))
    except RequestEntityTooLarge as error:
        raise InputError("The form has too many fields. Send fewer images at a time, or a .npy stack.") from error
    except ValueError as error:
        raise InputError(f"The form cannot be read ({first_line(error)}). Send image files as curl -F does.") from error
    found = [(file.filename or None, file.stream.read()) for _, file in files.items(multi=True)]
    if not found:
        raise InputError("There is no image file in the form. Send at least one, as a field such as files.")
    return found


class _Door:
    """Limits what comes in, and makes a sentence of every refusal that goes out."""

    def __init__(self, app: Application, most_bytes: int, hint: str) -> None:
        self.app, self.most_bytes, self.hint = app, most_bytes, hint

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["path"] == "/invocations" and scope["method"] == "POST":
            content = headers.get("content-type", "").partition(";")[0].strip().lower()
            if content != "application/json":
                await _drain(receive, 0)
                await _refuse(
                    send, 415, f"POST /invocations takes application/json, not '{content or 'nothing'}'. {self.hint}"
                )
                return
        body = await self._body(headers, receive)
        if body is None:
            megabytes = self.most_bytes / 1e6
            await _refuse(
                send,
                413,
                f"The body is larger than {megabytes:,.0f} MB. Send fewer images at a time, or as .npy to /images.",
            )
            return
        await self._pass_on(scope, body, receive, send)

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes | None:
        """Return the whole body, or None for one above the limit, the rest of which has been dropped."""
        declared = headers.get("content-length", "")
        if declared.isdigit() and int(declared) > self.most_bytes:
            await _drain(receive, 0)
            return None
        parts: list[bytes] = []
        total = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return b""
            parts.append(message.get("body", b""))
            total += len(parts[-1])
            if total > self.most_bytes:
                parts.clear()
                if message.get("more_body"):
                    await _drain(receive, total)
                return None
            if not message.get("more_body"):
                return b"".join(parts)

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


async def _refuse(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"error_code": _CODES.get(status, "ERROR"), "message": sentence}, ensure_ascii=False).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
