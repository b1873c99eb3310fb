"""Run the HTTPS service of a guardian or a student party: one process, restartable at any time."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import uvicorn

from tasks.parties.config import PartyConfig, read_party
from tasks.parties.guardian import GuardianService
from tasks.parties.keys import CERTIFICATE, TLS_KEY
from tasks.parties.service import PartyService, log, make_application
from tasks.parties.student import StudentService
from terrine.errors import InputError, TerrineError
from terrine.locks import locked

_MOST_CLIENTS = 512


def make_service(config: PartyConfig) -> PartyService:
    """Return the service of a party's role."""
    return GuardianService(config) if config.role == "guardian" else StudentService(config)


def serve(config: PartyConfig) -> None:
    """Run a service until it is stopped.

    Raises:
        TerrineError: Settings, keys, terms or ledger cannot be used, or another process uses this state.
    """
    assert config.listen is not None
    host, _, port = config.listen.rpartition(":")
    tls: dict[str, Any] = {}
    if config.tls:
        tls = {"ssl_keyfile": config.folder / TLS_KEY, "ssl_certfile": config.folder / CERTIFICATE}
        if missing := [path for path in tls.values() if not path.is_file()]:
            raise InputError(f"{missing[0]} is missing. Create it with `terrine party key --url`, or copy it there.")
    config.state.mkdir(parents=True, exist_ok=True)
    try:
        with locked(config.state / "serve.lock", 5.0):
            service = make_service(config)
            service.start()
            log.info("%s: serving %s at %s", service.name, config.terms.called, config.listen)
            uvicorn.run(
                make_application(service),
                host=host,
                port=int(port),
                log_level="warning",
                access_log=False,
                server_header=False,
                limit_concurrency=_MOST_CLIENTS,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=5,
                **tls,
            )
    except TimeoutError as error:
        raise InputError(f"Another process serves {config.state}. Stop it first.") from error


def main() -> None:
    """Serve a party of a trial. Arguments: CONFIG, host:port, and for a student party the guardian's URL."""
    path, listen, *urls = sys.argv[1:]
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    log.setLevel(logging.INFO)
    try:
        changes = {"listen": listen, "urls": {"guardian": urls[0]} if urls else {}}
        serve(read_party(Path(path)).model_copy(update=changes))
    except TerrineError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
