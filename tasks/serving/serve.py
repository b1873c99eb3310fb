"""serve: put a student behind a port."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Any

import h11
import numpy as np
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tasks.runtime.store import read_json
from tasks.serving.door import Door
from tasks.serving.guarantee import OWN_STATISTICS, guarantee
from tasks.serving.mlflow_model import quiet, save_student_model
from tasks.serving.rows import refuse_image_options
from tasks.serving.scoring import scoring_app
from tasks.serving.student_source import read_reference
from terrine.deployment.manifest import MANIFEST
from terrine.deployment.model import StudentModel, check_student
from terrine.deployment.network import ServingStatistics
from terrine.deployment.rows import TableStudent, takes_table
from terrine.errors import InputError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
CONNECTIONS, HEAD_SECONDS = 256, 10.0
"""Connections that there may be at a time, and how long each may take to say what it asks."""

_SHORTEST_KEY = 16


def build_app(
    student: Path,
    statistics: ServingStatistics | None = None,
    *,
    reference: Path | None = None,
    device: str = "auto",
    most_bytes: int = 16_000_000,
    key: str | None = None,
) -> tuple[Door, StudentModel | TableStudent]:
    """Return the web application of the student in folder `student`, and the model that answers.

    The student becomes an MLflow model in a temporary folder and is loaded from there as any server would load it.
    reference: own images, a folder or file. key: what whoever asks must show.
    """
    import mlflow

    manifest, table = check_student(student), takes_table(student)
    if table:
        refuse_image_options(statistics, reference)
    own = read_reference(reference, manifest)
    with tempfile.TemporaryDirectory(prefix="terrine-serve-") as name:
        folder = Path(name)
        settings: dict[str, Any] = {"device": device}
        if not table:
            settings |= {"statistics": statistics, "reference": None}
        if own is not None:
            settings["reference"] = str(folder / "reference.npy")
            np.save(folder / "reference.npy", own, allow_pickle=False)
        save_student_model(student, folder / "model", check_example=False)
        with quiet():
            loaded = mlflow.pyfunc.load_model(str(folder / "model"), model_config=settings)
        model: StudentModel | TableStudent = loaded.unwrap_python_model().student
        app = scoring_app(loaded, model, most_bytes=most_bytes, about=about(student, model, own is not None), key=key)
    return app, model


def about(student: Path, model: StudentModel | TableStudent, reference: bool = False) -> dict[str, Any]:
    """Return what the service tells about itself: the student, and the guarantee where its statement is at hand.

    reference: whether it normalises with images that were given, of which no statement speaks.
    """
    table = isinstance(model, TableStudent)
    takes = {"columns": model.about()} if table else {"shape": list(model.shape), "statistics": model.statistics}
    scale = model.student.scale if isinstance(model, TableStudent) else model.scale
    return {
        "class_names": model.class_names,
        **({} if scale is None else {"scale": scale.described()}),
        **takes,
        "digests": read_json(student / MANIFEST)["digests"],
        "privacy": None if reference else guarantee(student),
        **({"reference": OWN_STATISTICS} if reference else {}),
    }


class _Impatient(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, and no connection is held by a request whose head does not come to its end."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._late is not None:
            self._late.cancel()

    def _watch(self) -> None:
        # Between two requests uvicorn has a clock of its own, which the first byte of the next one stops.
        if self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None:
            self._late = self._late or self.loop.call_later(HEAD_SECONDS, self.transport.close)
        elif self._late is not None:
            self._late.cancel()
            self._late = None


def server_config(app: Door, host: str, port: int) -> uvicorn.Config:
    """Return how uvicorn serves the application."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=_Impatient,
        log_level="warning",
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=30,
    )


def serve(app: Door, host: str, port: int) -> None:
    """Serve until interrupted."""
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(server_config(app, host, port)).run()


def read_key(path: Path | None) -> str | None:
    """Return the key in a file, without the spaces around it; None for no file. Raises InputError for none in it."""
    if path is None:
        return None
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise InputError(f"The key in {path} cannot be read: {error}.") from error
    if len(key) < _SHORTEST_KEY or not key.isascii() or not key.isprintable():
        raise InputError(f"{path} holds no key of {_SHORTEST_KEY} characters or more. Make one: openssl rand -hex 16")
    return key
