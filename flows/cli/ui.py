"""`terrine ui`: MLflow, opened where ε and accuracy of all runs are in view."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer


def ui(port: Annotated[int, typer.Option(help="Port on this machine.")] = 5000) -> None:
    """Show the project's runs in MLflow, on this machine alone; Ctrl-C ends it."""
    from tasks.config.presets import project_root, resolve, selected_run
    from tasks.pipeline.tracking import lay_out_database
    from tasks.runtime.locks import at_work
    from tasks.runtime.run import Run
    from tasks.runtime.store import read_json

    root = project_root()
    name = selected_run(root)
    run = Run(root, name, resolve(root, name))
    record = run.folders.private / "tracking.json"
    view = read_json(record).get("view", "") if record.is_file() else ""
    with at_work(root):
        lay_out_database(run)
    print(f"MLflow: http://127.0.0.1:{port}/{view} in a few seconds (Ctrl-C ends it)", flush=True)
    uri = run.database(run.params.tracking.uri)
    arguments = ["-m", "mlflow", "ui", "--backend-store-uri", uri, "--host", "127.0.0.1", "--port", str(port)]
    os.execv(sys.executable, [sys.executable, *arguments])
