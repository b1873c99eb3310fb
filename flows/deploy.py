"""A trial of the real thing on one machine: Prefect server, process work pool, worker, deployment, run.

`terrine deploy-local` does on loopback what docs/prefect.md describes for a site: the server keeps the schedule and the
page, the worker polls a work pool and starts each run in a process of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.printing import printer
from flows.server import SECONDS, answers
from tasks.config.presets import runs, shown_assignment
from tasks.config.values import flat, parse_assignment, read_yaml
from terrine.errors import SettingError, TerrineError
from terrine.ports import free_ports

POOL, TRY = "terrine", "try"
START_SECONDS = SECONDS
PORT = 4200  # Prefect's own

OVERRIDABLE = (
    *("seed", "device", "partition", "queries", "backbone", "pretraining", "teachers", "aggregation", "student"),
    *("evaluation", "runner"),
)
"""What a deployment's overrides may set, where prefect.yaml does not say (`definitions: overridable`): sections, or
settings in them."""
NEVER = (
    "ledger", "data.public_benchmark", "aggregation.noise", "aggregation.delta", "transcription.delta", "privacy",
    "tracking.private_metrics",
)  # fmt: skip
"""What they may not, whatever prefect.yaml says: whose budget is drawn on, how large it is, what is protected, and
with which noise. Nor may they set what names files and machines of the site (`terrine.settings.AtHome`)."""


def check_overrides(root: Path, overrides: list[str]) -> None:
    """Refuse, as SettingError, overrides of a deployment that are not on the site's list.

    Whoever may start a deployment need not be whoever decides about budgets. A preset of the site, a file on its own
    disk, may set anything.
    """
    path = root / "prefect.yaml"
    listed = (read_yaml(path).get("definitions") or {}).get("overridable") if path.is_file() else None
    allowed = tuple(OVERRIDABLE if listed is None else map(str, listed))
    for override in overrides:
        values = parse_assignment(override)
        for key in flat(values):
            if _below(key, NEVER) or not _below(key, allowed) or shown_assignment(override) != override:
                raise SettingError(
                    f"A deployment may not override {key}: it may set {', '.join(allowed)}, and never "
                    f"{', '.join(NEVER)} or what names files and machines of the site. Put it into a preset in "
                    "experiments/ on this machine, and start the deployment with preset=NAME. Nothing was released."
                )


def _below(key: str, names: tuple[str, ...]) -> bool:
    return any(f"{key}.".startswith(f"{name}.") for name in names)


def _prefect(*arguments: str, environment: dict[str, str], root: Path) -> None:
    """Run one `prefect` command; its output is shown only when it fails."""
    command = [sys.executable, "-m", "prefect", "--no-prompt", *arguments]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TerrineError(f"`prefect {' '.join(arguments)}` failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


@contextmanager
def _background(arguments: list[str], environment: dict[str, str], root: Path, log: Path) -> Iterator[subprocess.Popen]:
    """Run a `prefect` command beside us, its output in a log file, and end it when the block ends."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w", encoding="utf-8") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", *arguments],
            cwd=root,
            env=environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_until_healthy(url: str, server: subprocess.Popen, log: Path, seconds: float = START_SECONDS) -> None:
    """Wait until a Prefect server answers at the URL of its API.

    Raises TerrineError, which names the server's log, when it has ended or does not answer in time.
    """
    if not answers(url, server, seconds):
        ended = "ended while starting" if server.poll() is not None else f"did not answer within {seconds:g} seconds"
        raise TerrineError(f"The Prefect server {ended}. Its log: {log}")


def deploy_local(root: Path, deployment: str, *, port: int | None, keep: bool) -> None:
    """Start server and worker on loopback, register the deployments of prefect.yaml, run one and wait for its end.

    With `keep` server and worker stay until Ctrl-C, so that the pages can be looked at. Raises TerrineError when a step
    or the run fails.
    """
    console = printer()
    # A terminated process would leave its server and worker behind; this way the blocks below end them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    port = port or free_ports(1, PORT)[0]
    api = f"http://127.0.0.1:{port}/api"
    logs = root / ".prefect"
    environment = {
        **os.environ,
        "PREFECT_API_URL": api,
        "PREFECT_HOME": str(logs / "home"),
        "PREFECT_UI_SERVE_BASE": "/",
        "TERRINE_ROOT": str(root),
    }
    server_log, worker_log = logs / "server.log", logs / "worker.log"
    with _background(
        ["server", "start", "--host", "127.0.0.1", "--port", str(port)], environment, root, server_log
    ) as server:
        wait_until_healthy(api, server, server_log)
        console.print(f"Prefect server: http://127.0.0.1:{port} (log {server_log.relative_to(root)})")
        _prefect("work-pool", "create", POOL, "--type", "process", "--overwrite", environment=environment, root=root)
        _prefect("deploy", "--all", environment=environment, root=root)
        console.print(f"Deployments of prefect.yaml are registered in work pool '{POOL}'.")
        with _background(["worker", "start", "--pool", POOL, "--type", "process"], environment, root, worker_log):
            console.print(f"Worker started (log {worker_log.relative_to(root)}). Running terrine/{deployment} ...")
            words = ["deployment", "run", f"terrine/{deployment}", "--watch"]
            if deployment == TRY:  # of a run that is complete there would be nothing to see
                words += ["--param", f'overrides=["queries.count=1000", "seed={len(runs(root)) + 1}"]']
            _prefect(*words, environment=environment, root=root)
            console.print(f"Deployment terrine/{deployment} completed.", style="green")
            if keep:
                console.print("Server and worker stay until Ctrl-C.")
                try:
                    server.wait()
                except KeyboardInterrupt:
                    console.print("Stopping.")
