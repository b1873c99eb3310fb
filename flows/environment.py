"""Settings of the libraries that work for us: no telemetry, no noise at exit. A value the user set stays."""

import contextlib
import os

DEFAULTS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # A server logs a meaningless traceback at its end.
    "PREFECT_LOGGING_SERVER_LEVEL": "CRITICAL",
    # A server on SQLite answers 503 where two writes overlap: to a third of the requests of eight clients. Prefect asks
    # again five times in one minute; this is seven times in four.
    "PREFECT_CLIENT_MAX_RETRIES": "7",
    "DVC_NO_ANALYTICS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
    # Threads that spin while they wait make torch many times slower as soon as another process wants the cores.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Every step in the life of a Dask worker would be a line in the terminal.
    "DASK_LOGGING__DISTRIBUTED": "warning",
}


def prepare_environment() -> None:
    """Set what is not set yet. Call it before Prefect, DVC, MLflow or torch is imported.

    Who has no home that can be written to, as the user of a container, has one in the project, and a name: all of these
    keep files there.
    """
    if not os.access(os.path.expanduser("~"), os.W_OK):
        home = os.path.join(os.environ.get("TERRINE_ROOT") or os.getcwd(), ".home")
        with contextlib.suppress(OSError):  # whoever needs it says so; DVC would make it for everybody
            os.makedirs(home, 0o700, exist_ok=True)
        os.environ |= {"HOME": home, "DVC_SITE_CACHE_DIR": os.path.join(home, "dvc")}
        if not os.access("/tmp", os.W_OK):
            os.environ.setdefault("TMPDIR", home)
        os.environ.setdefault("USER", f"user-{os.getuid()}")
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
