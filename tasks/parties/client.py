"""Requests to a service: signed, over TLS with the pinned certificate, repeated while the service is unreachable."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Mapping
from typing import Any, Literal

import urllib3
from urllib3.util.ssl_ import create_urllib3_context

from tasks.parties.config import PartyConfig
from tasks.parties.keys import signed_headers
from terrine.collaboration.protocol.agreement import LARGEST_BODY
from terrine.errors import TerrineError, first_line

_LARGEST_ANSWER = LARGEST_BODY + 64 * 2**20  # weights of averages take up to 80 MB


class CollaborationError(TerrineError):
    """A collaboration cannot continue. The error message says whether anything was charged."""


class UnreachableError(CollaborationError):
    """A service does not answer."""


class RefusalError(CollaborationError):
    """A service refused a request.

    Attributes:
        status: HTTP status code of the refusal.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ServiceClient:
    """Requests of one party to one service about one collaboration.

    Args:
        config: The party; its terms name the collaboration.
        service: Party that runs the service.
        patience: Seconds for which requests are repeated while the service is unreachable; None: the party's setting.
    """

    def __init__(
        self, config: PartyConfig, service: Literal["guardian", "student"], patience: float | None = None
    ) -> None:
        terms = config.terms
        self.receiver = terms.guardian if service == "guardian" else terms.student
        self.public_key = terms.keys[self.receiver]
        self.base = f"/v1/{terms.digest}"
        self._name, self._key, self._url = config.name, config.key, config.url(service)
        self._patience = config.patience if patience is None else patience
        about: dict[str, Any] = {"cert_reqs": "CERT_REQUIRED"}
        if (pin := terms.services[service].certificate) is not None:
            # The fingerprint decides. Loading the system's authorities would take longer than the request.
            context = create_urllib3_context(cert_reqs=ssl.CERT_NONE)
            about = {"ssl_context": context, "assert_hostname": False, "assert_fingerprint": pin[7:]}
        timeout = urllib3.Timeout(connect=10, read=600)
        self._pool = urllib3.PoolManager(retries=False, timeout=timeout, maxsize=4, **about)

    def request(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
        """Send a request and return the body of the answer.

        Args:
            method: HTTP method.
            path: Path below the URL of the collaboration.
            body: Body of the request.
            headers: Further headers.

        Raises:
            RefusalError: The service refused the request.
            UnreachableError: The service did not answer for `patience`.
            CollaborationError: The service's certificate is not the one that the terms pin.
        """
        end, wait = time.monotonic() + self._patience, 0.1
        while True:
            try:
                return self._once(method, f"{self.base}/{path}", body, headers or {})
            except UnreachableError:
                if time.monotonic() + wait > end:
                    raise
            time.sleep(wait)
            wait = min(2 * wait, 5.0)

    def _once(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        signed = signed_headers(self._key, self._name, self.receiver, method, path, body)
        try:
            response = self._pool.request(
                method,
                self._url + path,
                body=body,
                headers={**signed, **headers},
                preload_content=False,
                redirect=False,
            )
            answer = response.read(_LARGEST_ANSWER + 1)
            response.release_conn()
        except urllib3.exceptions.SSLError as error:
            raise CollaborationError(
                f"{self._url} has another TLS certificate than the terms pin, or an untrusted one "
                f"({first_line(error)}). Nothing was sent. Ask {self.receiver} by telephone."
            ) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise UnreachableError(
                f"{self.receiver} at {self._url} does not answer ({first_line(error)}). Run the command again later."
            ) from error
        if response.status in (502, 503, 504):
            raise UnreachableError(f"{self.receiver} at {self._url} is not available. Run the command again later.")
        if response.status >= 400:
            raise RefusalError(response.status, f"{self.receiver} refused: {_detail(answer)}")
        if len(answer) > _LARGEST_ANSWER:
            raise CollaborationError(f"{self.receiver} sent more than {_LARGEST_ANSWER >> 20} MiB.")
        return answer

    def json(self, method: str, path: str, content: Any = None) -> Any:
        """Send JSON and return the JSON of the answer.

        Raises:
            CollaborationError: As `request`, or the answer is not JSON.
        """
        body = b"" if content is None else json.dumps(content).encode()
        try:
            return json.loads(self.request(method, path, body))
        except ValueError as error:
            raise CollaborationError(f"{self.receiver} sent an answer that is not JSON.") from error


def _detail(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["detail"])
    except (ValueError, KeyError, TypeError):
        return "it gave no reason."
