"""Environment variables for libraries that Terrine uses. Variables that the user has set are not changed."""

import contextlib
import os

DEFAULTS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # Otherwise a server logs a meaningless traceback when it ends.
    "PREFECT_LOGGING_SERVER_LEVEL": "CRITICAL",
    # Logs of flow runs include the output of these loggers.
    "PREFECT_LOGGING_EXTRA_LOGGERS": "flows,tasks,terrine",
    # With SQLite, a server answers overlapping writes with 503: a third of the requests of eight clients. The default
    # of five retries takes one minute; seven take four minutes.
    "PREFECT_CLIENT_MAX_RETRIES": "7",
    "DVC_NO_ANALYTICS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
    # Spinning threads make torch many times slower when other processes need the cores.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Otherwise each change of a Dask worker prints a line in the terminal.
    "DASK_LOGGING__DISTRIBUTED": "warning",
}


def prepare_environment() -> None:
    """Set missing variables. Call it before Prefect, DVC, MLflow or torch is imported.

    If the home folder is not writable, as in a container, a folder of the project replaces it, because these libraries
    need one. A missing user name is also set.
    """
    if not os.access(os.path.expanduser("~"), os.W_OK):
        home = os.path.join(os.environ.get("TERRINE_ROOT") or os.getcwd(), ".home")
        with contextlib.suppress(OSError):  # libraries report it; DVC would create it with open permissions
            os.makedirs(home, 0o700, exist_ok=True)
        os.environ |= {"HOME": home, "DVC_SITE_CACHE_DIR": os.path.join(home, "dvc")}
        if not os.access("/tmp", os.W_OK):
            os.environ.setdefault("TMPDIR", home)
        os.environ.setdefault("USER", f"user-{os.getuid()}")
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
