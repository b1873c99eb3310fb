"""The web service of a student: MLflow's scoring server, with a door in front of it (`tasks.serving.door`).

MLflow's server answers POST /invocations, GET /ping, /health and /version, and everything that speaks to an MLflow
model speaks to it. Left alone it reads a body of any size into memory, echoes the request and a stack trace in its
errors, and fails with a 500 on a missing content type or on JSON nested too deeply.

Routes are added (docs/serving.md), because images as JSON are ten times their size: POST /images, GET /model, GET
/metrics for Prometheus; GET / is a page on which an image is dropped, GET /docs one with the routes; both load nothing.
"""

from __future__ import annotations

import asyncio
import io
import json
from functools import partial
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from tasks.reports.pages import render
from tasks.serving.door import Door
from tasks.serving.openapi import company, in_short, openapi, service_title
from tasks.serving.rows import add_rows
from terrine.data.pictures.files import decode_image
from terrine.deployment.model import StudentModel
from terrine.deployment.rows import TableStudent
from terrine.errors import InputError, first_line
from terrine.npy import from_bytes

MOST_PIXELS = 25_000_000
"""An encoded image of more is not decoded: a few kilobytes can hold gigabytes of pixels."""

_FORM = "multipart/form-data"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src blob:; connect-src 'self'"
"""What a browser lets our pages do: nothing but what is in them, and asking this service."""


def scoring_app(
    mlflow_model: Any,
    student: StudentModel | TableStudent,
    *,
    most_bytes: int,
    about: dict[str, Any],
    key: str | None = None,
) -> Door:
    """Return the ASGI application that serves a student.

    mlflow_model: the loaded pyfunc model, which answers /invocations; student: what it answers with. most_bytes: the
    largest body of a request. about: what GET /model returns. key: what whoever asks must show; None: anybody may.
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

    registry = CollectorRegistry()

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    if isinstance(student, TableStudent):
        values["hint"] = add_rows(app, student)
        return Door(app, most_bytes, values["hint"], key, registry)

    document = openapi(student, about, most_bytes)
    app.title, app.version = document["info"]["title"], document["info"]["version"]
    app.openapi = lambda: document  # type: ignore[method-assign]
    channels, *sides = student.shape
    values |= {
        "shape": f"{' x '.join(map(str, sides))} pixels, {'grey' if channels == 1 else 'colour'}",
        "company": f"One image alone and the same image in company get {company(student)}.",
        "statistics": student.statistics,
    }

    as_json = partial(json.dumps, indent=2, ensure_ascii=False)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return page("service_docs.html", {"document": document, "as_json": as_json})

    @app.post("/images")
    async def images(request: Request) -> dict[str, Any]:
        body = await request.body()
        content = request.headers.get("content-type", "")
        try:
            names, probabilities, refused = await asyncio.to_thread(_answer, body, content, student)
        except InputError as error:
            raise HTTPException(400, str(error)) from error
        return {
            "predictions": probabilities.tolist(),
            "labels": [student.label(row) for row in probabilities],
            **({} if student.scale is None else {"numbers": student.scale.numbers(probabilities).tolist()}),
            "class_names": student.class_names,
            "files": names,
            "refused": refused,
            "privacy": in_short(about),
        }

    hint = f'Send {{"inputs": [...]}} with floats in [0, 1] of shape {["images", *student.shape]}.'.replace("'", "")
    return Door(app, most_bytes, hint, key, registry)


def _answer(
    body: bytes, content: str, student: StudentModel
) -> tuple[list[str | None], np.ndarray, list[dict[str, Any]]]:
    """Return the names that images came with, the answers, float32 [images, classes], and which files were refused.

    A file of a form that cannot be read leaves the others their answers. Raises InputError if none can be.
    """
    kind = content.partition(";")[0].strip().lower()
    if kind == "application/x-npy":
        answers = student.predict(from_bytes(body, "The body"))
        return [None] * len(answers), answers, []
    files: list[tuple[str | None, bytes]]
    if kind == _FORM:
        files = _read_form(body, content)
    elif kind.startswith("image/"):
        files = [(None, body)]
    else:
        raise HTTPException(
            415,
            "POST /images takes image/* (one image), multipart/form-data (image files) or application/x-npy (a stack), "
            f"not '{kind or 'nothing'}'.",
        )
    names, decoded, refused = [], [], []
    for place, (name, data) in enumerate(files):
        try:
            decoded.append(_decode(name, data, student))
            names.append(name)
        except InputError as error:
            refused.append({"place": place, "message": str(error)})
    if not decoded:
        raise InputError(refused[0]["message"])
    return names, student.predict(np.stack(decoded)), refused


def _decode(name: str | None, data: bytes, student: StudentModel) -> np.ndarray:
    try:
        return decode_image(data, most_pixels=MOST_PIXELS, **student.reading)
    except InputError as error:
        raise error if name is None else InputError(f"{name[:80]}: {error}") from error


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
