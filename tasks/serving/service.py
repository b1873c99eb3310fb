"""HTTP service of a student: FastAPI application with typed requests and responses, and its server.

    POST /invocations   MLflow's protocol: inputs or instances; for tables also dataframe_split or dataframe_records
    POST /images        one encoded image, image files of a form, or a stack as .npy, a tenth the size of its JSON
    POST /rows          a CSV file, for the student of a table
    GET  /  /docs       pages for people, which load no external files
    GET  /model  /metrics  /ping  /health  /version

`tasks.serving.middleware` limits what a request may hold. Every error is a JSON object with a sentence, no stack trace.
"""

import contextlib
import errno
import importlib.metadata
import io
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Union

import numpy as np
import pandas as pd
import uvicorn
from fastapi import Body, FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from prometheus_client import CollectorRegistry
from prometheus_fastapi_instrumentator import Instrumentator
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, create_model
from starlette.exceptions import HTTPException as StarletteHTTPException

from tasks.reports.pages import render
from tasks.runtime.store import read_json
from tasks.serving.middleware import RequestGuard, refusal
from tasks.serving.pages import guarantee
from tasks.serving.predict import OWN_STATISTICS, open_student
from terrine.data.csv_file import read_csv
from terrine.data.image_files import decode_image
from terrine.deployment.manifest import MANIFEST
from terrine.deployment.model import StudentModel
from terrine.deployment.network import ServingStatistics
from terrine.deployment.rows import TableStudent
from terrine.errors import InputError, first_line
from terrine.npy import from_bytes

LOOPBACK = ("127.0.0.1", "::1", "localhost")
CONNECTIONS = 256
"""Most simultaneous connections; further requests get status 503."""
MOST_PIXELS = 25_000_000
"""A larger encoded image is not decoded: a few kilobytes can hold gigabytes of pixels."""
SHORTEST_KEY = 16

_FORM, _NPY = "multipart/form-data", "application/x-npy"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src blob:; connect-src 'self'"
"""Content security policy of the pages: they use only what they contain, and this service."""

Cell = str | int | float | bool | None


class Refusal(BaseModel):
    """A request that cannot be answered."""

    error_code: str
    message: str


class Guarantee(BaseModel):
    """The privacy guarantee of the student, and the digest of its statement."""

    epsilon: float | None
    delta: float
    unit: str
    private: bool
    statement_sha256: str


class Statement(Guarantee):
    """Privacy guarantee, and the run that it describes."""

    run: str | None
    noise: str | None
    summary: str | None


class About(BaseModel):
    """The student that is served."""

    class_names: list[str]
    scale: dict[str, Any] | None = Field(None, description="Ordered classes: edges of the bins, if they are bins.")
    shape: list[int] | None = Field(None, description="Channels, height and width of an image.")
    statistics: str | None = Field(None, description="Statistics that images are normalised with.")
    columns: list[dict[str, Any]] | None = Field(None, description="Columns of a table.")
    digests: dict[str, str] = Field(description="SHA-256 of the student's files.")
    privacy: Statement | None
    reference: str | None = Field(None, description="Set if the operator's own images are used for normalisation.")


class RefusedFile(BaseModel):
    """A file of a form that cannot be read; the other lists of the response do not contain it."""

    place: int = Field(description="Its place in the form, from 0.")
    message: str


class ImageAnswers(BaseModel):
    """Predictions for images, in their order."""

    predictions: list[list[float]] = Field(description="A row of class probabilities for each image.")
    labels: list[str] = Field(description="The most likely class of each image.")
    numbers: list[float] | None = Field(None, description="Ordered classes: the expected number or grade.")
    class_names: list[str] = Field(description="The columns of predictions.")
    files: list[str | None] = Field(description="Names of the files of a form.")
    refused: list[RefusedFile]
    privacy: Guarantee | None


class Invocations(BaseModel):
    """Predictions in MLflow's protocol."""

    predictions: list[dict[str, Cell]] = Field(description="Class, probability, and the probability of each class.")


class RowAnswers(Invocations):
    """Predictions for the rows of a CSV file, with their lines."""

    notes: list[str] = Field(description="Ignored columns and unknown words.")


class SplitFrame(BaseModel):
    """A data frame as pandas writes it with `orient="split"`."""

    columns: list[str]
    data: list[list[Cell]]
    index: list[Any] | None = None


def build_app(
    folder: Path,
    statistics: ServingStatistics | None = None,
    *,
    reference: Path | None = None,
    device: str = "auto",
    most_bytes: int = 16_000_000,
    key: str | None = None,
) -> tuple[FastAPI, StudentModel | TableStudent]:
    """Return the web application of a student, and the student.

    Args:
        folder: The student's folder.
        statistics: Statistics that images are normalised with; None: the student's default.
        reference: Own reference images, a folder or file.
        device: Device to predict on.
        most_bytes: Largest body of a request.
        key: API key; None: none is needed.

    Raises:
        ArtefactError: The student or its statement is damaged, or they do not belong together.
        InputError: The reference images cannot be read.
        SettingError: Options for images were given for the student of a table.
    """
    student = open_student(folder, statistics, reference, device)
    takes: dict[str, Any]
    if isinstance(student, TableStudent):
        scale, takes = student.student.scale, {"columns": student.about()}
    else:
        scale, takes = student.scale, {"shape": list(student.shape), "statistics": student.statistics}
    about = {
        "class_names": student.class_names,
        **({} if scale is None else {"scale": scale.describe()}),
        **takes,
        "digests": read_json(folder / MANIFEST)["digests"],
        "privacy": None if reference is not None else guarantee(folder),
        **({} if reference is None else {"reference": OWN_STATISTICS}),
    }
    return service(student, about, most_bytes=most_bytes, key=key), student


def service(
    student: StudentModel | TableStudent, about: dict[str, Any], *, most_bytes: int, key: str | None = None
) -> FastAPI:
    """Return the web application of a loaded student; see `build_app`. about: the content of GET /model."""
    title = (about.get("privacy") or {}).get("run") or "Student"
    names = ", ".join(student.class_names[:20]) + (", …" if len(student.class_names) > 20 else "")
    refused = {"application/json": {"schema": Refusal.model_json_schema()}}  # on every route
    app = FastAPI(
        title=title,
        version=importlib.metadata.version("terrine"),
        description=f"Classes: {names}. A body may have {most_bytes / 1e6:,.0f} MB.",
        docs_url=None,  # FastAPI's page loads its scripts from elsewhere
        redoc_url=None,
        responses={"4XX": {"description": "The request cannot be answered; the message says why.", "content": refused}},
    )
    app.add_middleware(RequestGuard, most_bytes=most_bytes, key=key)
    metrics = Instrumentator(should_group_status_codes=False, registry=CollectorRegistry())
    metrics.instrument(app, metric_namespace="terrine").expose(app, response_class=PlainTextResponse)
    values = {
        "title": title,
        "privacy": about.get("privacy"),
        "class_names": student.class_names,
        "columns": about.get("columns"),
        "dependence": "A prediction depends on its row only.",
    }
    hint = _add_rows(app, student) if isinstance(student, TableStudent) else _add_images(app, student, about, values)
    _add_errors(app, hint)

    def page(template: str, content: dict[str, Any]) -> HTMLResponse:
        return HTMLResponse(render(template, content), headers={"content-security-policy": _POLICY})

    @app.get("/", include_in_schema=False)
    async def front() -> HTMLResponse:
        return page("service.html", values | {"hint": hint})

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return page("service_docs.html", {"document": app.openapi()})

    @app.get("/model", response_model=About, response_model_exclude_unset=True)
    async def model() -> dict[str, Any]:
        """Class names, shape or columns, digests, and the privacy guarantee."""
        return about

    @app.get("/ping", response_class=PlainTextResponse)
    @app.get("/health", response_class=PlainTextResponse)
    async def alive() -> str:
        """Return an empty line if the service is running."""
        return "\n"

    @app.get("/version", response_class=PlainTextResponse)
    async def version() -> str:
        """Terrine's version."""
        return app.version

    return app


def _add_images(app: FastAPI, student: StudentModel, about: dict[str, Any], values: dict[str, Any]) -> str:
    """Add the routes of an image student, and its part of the front page; return how to send a request."""
    channels, *sides = student.shape
    values |= {
        "shape": f"{' x '.join(map(str, reversed(sides)))} pixels, {'grey' if channels == 1 else 'colour'}",
        "statistics": student.statistics,
        "dependence": "Images are normalised with the statistics of the whole request."
        if student.statistics == "current"
        else "A prediction depends on its image only.",
    }
    images: Any = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, strict=True)]
    for length in reversed(student.shape):
        images = Annotated[list[images], Field(min_length=length, max_length=length, fail_fast=True)]
    images = Annotated[list[images], Field(min_length=1, fail_fast=True)]
    guarantee = about.get("privacy")

    @app.post("/invocations")
    def invocations(body: _invocation({"inputs": images, "instances": images})) -> Invocations:  # type: ignore[valid-type]
        """Answer as MLflow's scoring server does: images are floats in [0, 1], [images, channels, height, width]."""
        request: Any = body
        answers = student.answers(student.predict(np.array(request.data, np.float32)))
        return Invocations(predictions=answers.to_dict("records"))

    binary = {"schema": {"type": "string", "format": "binary"}}
    files: dict[str, Any] = {"type": "object", "required": ["files"]}
    files |= {"properties": {"files": {"type": "array", "minItems": 1, "items": binary["schema"]}}}
    takes = {"image/*": binary, _NPY: binary, _FORM: {"schema": files}}

    @app.post("/images", openapi_extra={"requestBody": {"required": True, "content": takes}})
    async def images_(request: Request) -> ImageAnswers:
        """Answer for one encoded image, the image files of a form, or a .npy stack [images, channels, height, width].

        Files of a form that cannot be read are listed in `refused`; the others are answered.
        """
        body, content = await request.body(), request.headers.get("content-type", "")
        names, probabilities, refused = await run_in_threadpool(_answer, body, content, student)
        return ImageAnswers(
            predictions=probabilities.tolist(),
            labels=[student.label(row) for row in probabilities],
            numbers=None if student.scale is None else student.scale.numbers(probabilities).tolist(),
            class_names=student.class_names,
            files=names,
            refused=refused,
            privacy=guarantee and Guarantee.model_validate(guarantee),
        )

    return f'Send {{"inputs": [...]}} with floats in [0, 1] of shape [images, {", ".join(map(str, student.shape))}].'


def _add_rows(app: FastAPI, student: TableStudent) -> str:
    """Add the routes of a table's student; return how to send a request."""
    records = Annotated[list[dict[str, Cell]], Field(min_length=1)]
    columns = records | dict[str, list[Cell]]
    formats = {"dataframe_records": records, "dataframe_split": SplitFrame, "inputs": columns, "instances": columns}

    @app.post("/invocations")
    def invocations(body: _invocation(formats)) -> Invocations:  # type: ignore[valid-type]
        """Answer as MLflow's scoring server does: rows with the columns of the table, in any order."""
        request: Any = body
        split = isinstance(request.data, SplitFrame)
        try:
            rows = pd.DataFrame(**request.data.model_dump()) if split else pd.DataFrame(request.data)
        except ValueError as error:
            raise InputError(f"The rows are no table: {first_line(error)}") from error
        return Invocations(predictions=student.answers(rows, "The request").to_dict("records"))

    @app.post("/rows")
    def rows(body: Annotated[bytes, Body(media_type="text/csv")]) -> RowAnswers:
        """Answer for the rows of a CSV file, by the line in which a row starts."""
        table = read_csv(body, "The body")
        answers = student.answers(table, "The body", "line").reset_index()
        return RowAnswers(predictions=answers.to_dict("records"), notes=student.notes(table))

    first = [f'"{column.name}": ...' for column in student.encoding.columns[:2]]
    more = ", ..." if len(student.encoding.columns) > len(first) else ""
    return f'Send {{"dataframe_records": [{{{", ".join(first)}{more}}}]}}, or a CSV file to /rows.'


def _invocation(formats: Mapping[str, Any]) -> Any:
    """Return the type of a request in MLflow's protocol: exactly one of these fields."""

    def given(value: Any) -> str | None:
        found = [name for name in formats if isinstance(value, dict) and name in value]
        return found[0] if len(found) == 1 else None

    strict = ConfigDict(extra="forbid")
    variants = [
        Annotated[create_model(name, __config__=strict, data=(kind, Field(alias=name))), Tag(name)]
        for name, kind in formats.items()
    ]
    wrong = f"The body is not a JSON object with exactly one of the fields {', '.join(formats)}"
    chosen = Discriminator(given, custom_error_type="format", custom_error_message=wrong)
    return Annotated[Union[tuple(variants)], chosen]  # noqa: UP007  # the tuple is known at run time only


def _add_errors(app: FastAPI, hint: str) -> None:
    """Turn every error into a refusal: a JSON object with a sentence, without request data or stack trace."""

    @app.exception_handler(StarletteHTTPException)
    async def http_error(request: Request, error: StarletteHTTPException) -> Response:
        text = str(error.detail).rstrip(".") + "."
        return refusal(
            error.status_code, f"{text} {hint}" if request.url.path == "/invocations" else text, error.headers
        )

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        first = error.errors()[0]
        if request.url.path == "/invocations" and content != "application/json":
            what = content[:80] or "a body without a content type"
            return refusal(415, f"{request.url.path} takes application/json, and not {what}. {hint}")
        place = ".".join(map(str, first["loc"][2:]))[:80]
        return refusal(400, f"{place}{': ' if place else ''}{first['msg']}. {hint}")

    @app.exception_handler(InputError)
    async def unusable(request: Request, error: InputError) -> Response:
        return refusal(400, f"{error} {hint}" if request.url.path == "/invocations" else str(error))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return refusal(500, "The server failed on this request; its log says why.")


def _answer(body: bytes, content: str, student: StudentModel) -> tuple[list[str | None], np.ndarray, list[RefusedFile]]:
    """Return names of images, their probabilities, float32 [images, classes], and the files that cannot be read.

    Raises:
        HTTPException: The body is of another type.
        InputError: No image can be read.
    """
    kind = content.partition(";")[0].strip().lower()
    if kind == _NPY:
        answers = student.predict(from_bytes(body, "The body"))
        return [None] * len(answers), answers, []
    if kind != _FORM and not kind.startswith("image/"):
        raise HTTPException(
            415,
            f"POST /images takes image/* (one image), {_FORM} (image files) or {_NPY} (a stack), not {kind or 'none'}",
        )
    names, images, refused = [], [], []
    for place, (name, data) in enumerate(_read_form(body, content) if kind == _FORM else [(None, body)]):
        try:
            images.append(decode_image(data, most_pixels=MOST_PIXELS, **student.reading))
            names.append(name)
        except InputError as error:
            refused.append(RefusedFile(place=place, message=str(error) if name is None else f"{name[:80]}: {error}"))
    if not images:
        raise InputError(refused[0].message)
    return names, student.predict(np.stack(images)), refused


def _read_form(body: bytes, content: str) -> list[tuple[str | None, bytes]]:
    """Return name and bytes of every file in a form, in order; raise InputError for a form without files."""
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


def server_config(app: FastAPI, host: str, port: int) -> uvicorn.Config:
    """Return the configuration with which uvicorn serves the application."""
    return uvicorn.Config(
        app, host=host, port=port, log_level="warning", limit_concurrency=CONNECTIONS, timeout_keep_alive=30
    )


def require_free_port(host: str, port: int) -> None:
    """Raise InputError if this process cannot listen on the port."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        used = error.errno == errno.EADDRINUSE
        what = f"Port {port} is in use" if used else f"Cannot listen on {host}, port {port} ({error})"
        raise InputError(f"{what}. Choose another with --port{'' if used else ' or --host'}.") from error


def serve(app: FastAPI, host: str, port: int) -> None:
    """Serve until interrupted."""
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(server_config(app, host, port)).run()


def read_key(path: Path | None) -> str | None:
    """Return the API key in a file, without the spaces around it; None for no file.

    Raises:
        InputError: The file cannot be read, or holds no printable ASCII text of `SHORTEST_KEY` characters or more.
    """
    if path is None:
        return None
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise InputError(f"The key in {path} cannot be read: {error}.") from error
    if len(key) < SHORTEST_KEY or not key.isascii() or not key.isprintable():
        raise InputError(f"{path} holds no key of {SHORTEST_KEY} characters or more. Make one: openssl rand -hex 16")
    return key
