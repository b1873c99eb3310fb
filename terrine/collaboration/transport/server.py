"""The side that listens: the guardian, and the student party."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn

import grpc
import grpc.aio

from terrine.collaboration.transport.credentials import CredentialError, Identity, Role, identity_of
from terrine.collaboration.transport.link import (
    Asked,
    Disconnected,
    Fault,
    Link,
    Malformed,
    Refusal,
    TransportError,
    checked_greeting,
)
from terrine.collaboration.transport.node import Node
from terrine.collaboration.transport.stream import GREETING_SECONDS, HELD_SECONDS, METHOD, OPTIONS, SERVICE, pump

_SILENT = 4
"""Connections of one party that may be open before they have greeted. Of those that have, the newest lives."""


class Server:
    """Takes the connections of the peers that are expected, and of nobody else.

    Args:
        expected: The role that each peer, by name, is admitted in.
    """

    def __init__(self, node: Node, expected: Mapping[str, Role]) -> None:
        self._node = node
        self._expected = dict(expected)
        self._server: grpc.aio.Server | None = None
        self._silent: Counter[str] = Counter()
        for name, role in expected.items():
            node.link(name, role)

    async def listen(self, address: str) -> int:
        """Listen at `address`, host:port; return the port. Raises TransportError when the address cannot be used."""

        async def exchange(_requests: Any, context: Any) -> None:
            await self._serve(context)

        # No limit on all parties together: one of them alone could use it up.
        server = grpc.aio.server(options=[*OPTIONS, ("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", _SILENT)])
        handler = grpc.stream_stream_rpc_method_handler(exchange)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        own = self._node.credentials
        tls = grpc.ssl_server_credentials(
            [(own.key, own.certificate)], root_certificates=own.authority, require_client_auth=True
        )
        port, cause = 0, None
        try:
            port = server.add_secure_port(address, tls)
        except RuntimeError as error:
            cause = error
        if port == 0:
            raise TransportError(
                f"{own.name} cannot listen at {address}: the address is not this machine's or the port is taken. Set "
                "another."
            ) from cause
        await server.start()
        self._server = server
        return port

    async def stop(self) -> None:
        """Take no more connections, and end those there are."""
        if self._server is not None:
            await self._server.stop(0.2)

    async def _serve(self, context: Any) -> None:
        """One stream of a peer that connected to us."""
        identity = await self._admitted(context)
        link = self._node.links[identity.name]
        if self._silent[identity.name] >= _SILENT:
            sentence = f"{self._node.credentials.name}: {_SILENT} connections of {identity.name!r} have yet to greet."
            await context.abort(grpc.StatusCode.UNAVAILABLE, sentence)
        self._silent[identity.name] += 1
        try:
            hello = await self._greeting(context, identity)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"No greeting came within {GREETING_SECONDS:g} s.")
        except Refusal as error:
            await self._refuse(context, identity.name, f"{identity.name!r} was refused. {error}", error)
        except Fault as error:
            await self._fault(context, identity.name, error)
        except (grpc.aio.BaseError, asyncio.CancelledError):
            return
        finally:
            self._silent[identity.name] -= 1
        await _replace_stream(link)
        connected = False
        try:
            changed = self._node.changed
            await _whole(context.write(self._node.hello(link)))
            if hello["session"] != self._node.session or self._node.session is None:
                self._node.emit(Asked(identity.name, hello["session"], hello["greeting"]))
                # It comes back when it has taken over ours, or we have taken over the guardian's.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), HELD_SECONDS)
                return
            connected = True
            self._node.meet(link, hello)
            await pump(self._node, link, context.read, context.write)
        except Fault as error:
            await self._fault(context, identity.name, error)
        except asyncio.CancelledError:
            pass
        except (grpc.RpcError, grpc.aio.BaseError, grpc.aio.UsageError, asyncio.InvalidStateError):
            pass
        finally:
            if link.stream is asyncio.current_task():
                link.stream = None
            if connected:
                self._node.emit(Disconnected(identity.name, "the connection ended"))

    async def _admitted(self, context: Any) -> Identity:
        """Return whom the certificate names; a stranger, or a party in another role, is turned away."""
        known = list(context.auth_context().get("x509_pem_cert", []))
        try:
            if not known:
                raise Refusal("It showed no certificate.")
            identity = identity_of(known[0])
            if self._expected.get(identity.name) is None:
                raise Refusal(f"{identity.name!r} takes no part in this collaboration.")
            if self._expected[identity.name] != identity.role:
                raise Refusal(
                    f"{identity.name!r} is to be a {self._expected[identity.name]} here, and its certificate is one "
                    f"for a {identity.role}."
                )
        except (Refusal, CredentialError) as error:
            await self._refuse(context, _stranger(known, context), f"It was refused. {error}", error)
        return identity

    async def _greeting(self, context: Any, identity: Identity) -> dict[str, Any]:
        """Return what a peer greets with. Raises Refusal or Fault where it is not what its certificate lets it say, and
        TimeoutError where nothing came.
        """
        first = await asyncio.wait_for(context.read(), GREETING_SECONDS)
        hello = checked_greeting(first, self._node.terms, self._node.credentials.name)
        if hello["name"] != identity.name or hello["role"] != identity.role:
            raise Refusal(
                f"The certificate is that of the {identity.role} {identity.name!r}, and the message says it is from "
                f"the {hello['role']} {hello['name']!r}: a party speaks for itself, in one role."
            )
        return hello

    async def _refuse(self, context: Any, peer: str, sentence: str, error: Exception) -> NoReturn:
        """Turn a peer away, and tell the host; gRPC's abort raises, so it does not return."""
        self._node.emit(Malformed(peer, sentence))
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{self._node.credentials.name}: {error}")

    async def _fault(self, context: Any, peer: str, error: Fault) -> NoReturn:
        """End the stream of a peer that does not keep to the protocol, and tell the host; it does not return."""
        self._node.emit(Malformed(peer, f"A connection of {peer!r} was closed: {error}."))
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{self._node.credentials.name}: {error}.")


async def _whole(writing: Any) -> None:
    """Write a message to its end, whoever cancels this meanwhile: a stream that ends in the middle of one is never told
    to the peer as ended."""
    task = asyncio.ensure_future(writing)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def _replace_stream(link: Link) -> None:
    """Make the current task the link's only stream: the newest connection is the one that lives."""
    old, link.stream = link.stream, asyncio.current_task()
    if old is not None and old is not link.stream:
        old.cancel()
        await asyncio.wait([old], timeout=5.0)


def _stranger(certificates: list[bytes], context: Any) -> str:
    with contextlib.suppress(CredentialError):
        return identity_of(certificates[0]).name if certificates else str(context.peer())
    return str(context.peer())
