"""The wire: real gRPC over mutual TLS on loopback, with peers that break, lie and send nonsense."""

import contextlib
import json
import os
import random
import resource
import socket
import threading
import time

import grpc
import pytest

from terrine.collaboration.protocol.messages import LARGEST_FRAME
from terrine.collaboration.transport import client as connecting
from terrine.collaboration.transport.credentials import create_authority, issue
from terrine.collaboration.transport.link import (
    Arrived,
    Asked,
    Connected,
    Failed,
    Link,
    Malformed,
    PeerRestarted,
    SessionOffered,
    TransportError,
    difference,
    greeting_message,
)
from terrine.collaboration.transport.stream import HELD_SECONDS, read_messages, write_messages
from terrine.collaboration.transport.wire import Wire

TERMS = {"queries": 3}
SESSION = "5" * 32


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """Credentials of everybody in these tests, by name."""
    root = tmp_path_factory.mktemp("people")
    ours, theirs = create_authority(root / "ours"), create_authority(root / "theirs")
    made = {
        "guardian": issue(ours, root / "guardian", "guardian", "guardian"),
        "student": issue(ours, root / "student", "student", "student"),
        "one": issue(ours, root / "one", "one", "teacher"),
        "two": issue(ours, root / "two", "two", "teacher"),
        "unknown": issue(theirs, root / "unknown", "one", "teacher"),
        "expired": issue(ours, root / "expired", "one", "teacher", days=-1),
        "one as student": issue(ours, root / "both", "one", "student"),
        "uninvited": issue(ours, root / "uninvited", "three", "teacher"),
        "expired guardian": issue(ours, root / "old", "guardian", "guardian", days=-1),
    }
    return made


@pytest.fixture
def wires(people):
    """Make wires that are closed when the test is over."""
    with contextlib.ExitStack() as stack:

        def make(name, terms=TERMS, patience=30.0):
            return stack.enter_context(Wire(people[name], terms, patience=patience))

        yield make


@pytest.fixture
def guardian(wires):
    """A guardian that waits for one, two and the student, in a session; with its address."""
    wire = wires("guardian")
    port = wire.listen("127.0.0.1:0", {"one": "teacher", "two": "teacher", "student": "student"})
    wire.begin(SESSION)
    return wire, f"127.0.0.1:{port}"


def until(wire, kind, timeout=30.0):
    """The next event of a kind; events of other kinds are skipped."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        event = wire.next(0.2)
        if isinstance(event, kind):
            return event
        assert not isinstance(event, Failed), event
    raise AssertionError(f"no {kind.__name__} within {timeout} s")


def contents(wire, count, timeout=40.0):
    """The content of so many events of frames and notes."""
    return [until(wire, Arrived, timeout).content for _ in range(count)]


def join(client, address):
    """Connect to the guardian and take over its session."""
    client.connect("guardian", "guardian", address, convenes=True)
    client.begin(until(client, SessionOffered).session)
    until(client, Connected)
    return client


def test_frames_and_notes_arrive_once_in_order_and_both_ways(guardian, wires):
    server, address = guardian
    clients = {name: join(wires(name), address) for name in ("one", "two", "student")}
    largest = os.urandom(LARGEST_FRAME)
    for name, client in clients.items():
        for number in range(40):
            client.send("guardian", f"{name} {number}".encode())
        client.note("guardian", last=True)
    clients["student"].send("guardian", largest)
    got = {name: [] for name in clients}
    for _ in range(3 * 41 + 1):
        event = until(server, Arrived)
        got[event.peer].append(event.content)
    for name in clients:
        assert got[name][:40] == [f"{name} {number}".encode() for number in range(40)]
        assert got[name][40] == {"last": True}
    assert got["student"][41] == largest
    for number in range(5):
        server.send("two", bytes([number]) * 1000)
    assert contents(clients["two"], 5) == [bytes([number]) * 1000 for number in range(5)]
    assert server.flush("two", 5.0)


def test_a_session_begins_anew_on_both_sides(guardian, wires):
    server, address = guardian
    client = join(wires("one"), address)
    client.send("guardian", b"old")
    assert until(server, Arrived).session == SESSION
    server.begin("6" * 32)
    offered = until(client, SessionOffered)
    assert offered.session == "6" * 32
    client.send("guardian", b"never arrives")
    client.begin(offered.session)
    client.send("guardian", b"new")
    event = until(server, Arrived)
    assert (event.session, event.content) == ("6" * 32, b"new")


class Proxy:
    """A network that can be cut: passes bytes between a port and an address."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._pairs, self.open, self.passed = [], True, 0
        self.taken, self.delay = 0, 0.0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if not self.open:
                    near.close()
                    continue
                self.taken += 1
                far = socket.create_connection(self._target)
                self._pairs += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                time.sleep(self.delay)
                self.passed += len(data)
                sink.sendall(data)

    def cut(self):
        pairs, self._pairs = self._pairs, []
        for end in pairs:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self):
        self._listener.close()
        self.cut()


def test_who_waits_for_a_session_keeps_one_connection_and_joins_on_it(wires):
    """Where a thousand wait, connections that are made anew take all of the time there is; so do handshakes that are
    broken off because they queue."""
    server, client = wires("guardian"), wires("one")
    proxy = Proxy(f"127.0.0.1:{server.listen('127.0.0.1:0', {'one': 'teacher'})}")
    proxy.delay = 1.2  # twice a handshake, which is longer than gRPC gives one that it means to begin again
    try:
        client.connect("guardian", "guardian", proxy.address, convenes=True)
        until(server, Asked)
        proxy.delay = 0.0
        end, asked = time.monotonic() + 3.0, 0
        while time.monotonic() < end:
            asked += isinstance(server.next(0.1), Asked)
        assert asked <= 1
        server.begin(SESSION)
        client.begin(until(client, SessionOffered).session)
        until(client, Connected)
        assert proxy.taken == 1
    finally:
        proxy.close()


def test_a_session_that_begins_while_greetings_cross_is_met_on_the_next_stream(wires, guardian, monkeypatch):
    """The peer has heard no session of ours, and waits: who took itself as in session would wait for it in vain."""
    (server, address), party, plain = guardian, wires("one"), connecting.checked_greeting

    def crossed(*greeting):
        if party.session is None:
            party._node.begin(SESSION)
        return plain(*greeting)

    monkeypatch.setattr(connecting, "checked_greeting", crossed)
    party.connect("guardian", "guardian", address)
    until(server, Connected, timeout=HELD_SECONDS / 2)


def test_parties_of_one_process_share_a_thread_which_ends_with_the_last(people):
    def threads():
        return [thread.name for thread in threading.enumerate() if thread.name == "wire"]

    wires = [Wire(people[name], TERMS) for name in ("guardian", "one", "two")]
    assert not threads()  # a party that never gets as far as to connect leaves none
    with contextlib.ExitStack() as stack:
        for wire in wires:
            stack.enter_context(wire)
        assert threads() == ["wire"]
    assert not threads()


def test_nothing_is_lost_or_doubled_when_the_network_is_cut_again_and_again(guardian, wires):
    server, address = guardian
    proxy = Proxy(address)
    try:
        client = join(wires("one"), proxy.address)
        frames = [number.to_bytes(4, "big") + os.urandom(50_000) for number in range(120)]

        def send():
            for number, frame in enumerate(frames):
                client.send("guardian", frame)
                server.send("one", frame[:4])
                if number % 30 == 15:
                    proxy.cut()
                time.sleep(0.002)

        sender = threading.Thread(target=send)
        sender.start()
        assert contents(server, 120) == frames
        assert contents(client, 120) == [frame[:4] for frame in frames]
        sender.join()
        assert server.next(0.3) is None or not isinstance(server.next(0.0), Arrived)
    finally:
        proxy.close()


def test_what_a_connection_brings_after_a_new_session_began_counts_in_neither(wires):
    """A message of the old session that is there when the new one begins must not pass for the new one's first."""
    wire, link, written = wires("guardian"), Link("one", "teacher"), []

    def begin():
        link.reset()
        link.put(b"F", b"of the new session")

    async def trial(message):
        link.reset()
        link.put(b"F", b"of the old session")

        async def read():
            begin()
            return message

        await read_messages(wire._node, link, read)
        return link.received, list(link.outgoing)

    async def writing():
        link.reset()
        link.received = 3  # to be acknowledged

        async def write(message):
            written.append(message)
            begin()

        await write_messages(link, write)
        return link.acknowledged, link.cursor

    async def session():
        wire._node.session = SESSION

    for work in (trial(b"F" + (1).to_bytes(8, "big") + b"x"), trial(b"A" + (1).to_bytes(8, "big"))):
        wire._call(session(), 5.0)
        assert wire._call(work, 5.0) == (0, [(1, b"F", b"of the new session")])
    assert wire.next(0.0) is None
    assert wire._call(writing(), 5.0) == (0, 0)
    assert written == [b"A" + (3).to_bytes(8, "big")]


def test_what_a_party_says_is_not_held_up_by_acknowledging_what_it_hears(wires):
    wire, link, written = wires("guardian"), Link("one", "teacher"), []
    link.put(b"F", b"own")
    link.received = 1

    async def write(message):
        written.append(message[:1])
        link.received += 1  # the peer goes on and on
        link.wake.set()
        if len(written) == 6:
            link.reset()

    async def writing():
        await write_messages(link, write)

    wire._call(writing(), 5.0)
    assert written[:3] == [b"A", b"F", b"A"]


def test_a_client_that_cannot_get_through_gives_up_with_a_sentence(guardian, wires):
    _, address = guardian
    proxy = Proxy(address)
    try:
        client = join(wires("one", patience=1.0), proxy.address)
        proxy.open = False
        proxy.cut()
        failed = _failure(client, 10.0)
        assert "could not be reached for 1 s" in str(failed)
    finally:
        proxy.close()


def _failure(wire, timeout):
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        event = wire.next(0.2)
        if isinstance(event, Failed):
            return event.error
    raise AssertionError("it did not give up")


def test_a_sender_waits_for_a_slow_reader_and_not_for_ever(guardian, wires):
    server, address = guardian
    client = join(wires("one", patience=1.0), address)
    frame = bytes(LARGEST_FRAME)

    def send_many():
        for _ in range(40):  # nobody reads: a bounded number is held
            client.send("guardian", frame)

    with pytest.raises(TransportError, match="has taken nothing for 1 s"):
        send_many()
    # What had been held arrives when somebody reads.
    assert all(content == frame for content in contents(server, 3))


def test_a_teacher_that_was_started_again_sends_again_and_nothing_is_taken_twice(guardian, wires, people):
    server, address = guardian
    with Wire(people["one"], TERMS, patience=30) as first:
        join(first, address)
        for number in range(3):
            first.send("guardian", bytes([number]))
        server.note("one", hello=1)
        assert until(first, Arrived).content == {"hello": 1}
        assert contents(server, 3) == [b"\0", b"\1", b"\2"]
        server.note("one", hello=2)
    again = wires("one")
    again.connect("guardian", "guardian", address, convenes=True)
    again.begin(until(again, SessionOffered).session)
    for number in range(6):
        again.send("guardian", bytes([number]))
    assert contents(server, 3) == [b"\3", b"\4", b"\5"]
    server.note("one", hello=3)
    got = until(again, Arrived).content
    if got == {"hello": 2}:  # it may have been acknowledged to the process before, or not
        got = until(again, Arrived).content
    assert got == {"hello": 3}


def test_a_student_that_was_started_again_needs_a_new_session(guardian, wires, people):
    server, address = guardian
    with Wire(people["student"], TERMS, patience=30) as first:
        join(first, address)
        assert not until(server, Connected).restarted
    join(wires("student"), address)
    assert until(server, Connected).restarted
    with pytest.raises(PeerRestarted):
        server.send("student", b"x")
    server.begin("7" * 32)
    server.send("student", b"x")


def test_a_teacher_says_everything_again_to_a_student_that_was_started_again(wires, people):
    """The guardian has not met either of the student's processes: the session goes on."""
    with Wire(people["student"], TERMS, patience=30) as first:
        port = first.listen("127.0.0.1:0", {"one": "teacher"})
        first.begin(SESSION)
        teacher = wires("one")
        teacher.begin(SESSION)
        teacher.connect("student", "student", f"127.0.0.1:{port}")
        until(teacher, Connected)
        for number in range(3):
            teacher.send("student", bytes([number]))
        assert contents(first, 3) == [b"\0", b"\1", b"\2"]
        first.note("one", hello=1)
        assert until(teacher, Arrived).content == {"hello": 1}
    second = wires("student")
    second.listen(f"127.0.0.1:{port}", {"one": "teacher"})
    second.begin(SESSION)
    assert until(teacher, Connected).restarted
    with pytest.raises(PeerRestarted):
        teacher.send("student", b"x")
    teacher.renew("student")
    for number in range(3):
        teacher.send("student", bytes([number]))
    assert contents(second, 3) == [b"\0", b"\1", b"\2"]
    second.note("one", hello=2)
    assert until(teacher, Arrived).content == {"hello": 2}


@pytest.mark.parametrize(
    ("who", "sentence"),
    [
        ("unknown", "did not accept our certificate"),
        ("expired", "Our own certificate expired on"),
        ("one as student", "'one' is to be a teacher here, and its certificate is one for a student"),
        ("uninvited", "'three' takes no part in this collaboration"),
    ],
)
def test_strangers_are_refused_in_a_sentence(who, sentence, guardian, wires):
    server, address = guardian
    client = wires(who, patience=0.5)
    client.connect("guardian", "guardian", address, convenes=True)
    assert sentence in str(_failure(client, 10.0))
    seen = [event for event in iter(lambda: server.next(0.1), None) if not isinstance(event, Malformed)]
    assert seen == []


def test_other_terms_are_refused_with_what_differs_and_both_values_at_both_ends(guardian, wires):
    server, address = guardian
    client = wires("one", terms={"queries": 4, "class_names": ["a", "b"]})
    client.connect("guardian", "guardian", address, convenes=True)
    said = [str(_failure(client, 5.0)), until(server, Malformed).reason]
    for sentence in said:
        assert "queries is 4 at 'one' and 3 at 'guardian'" in sentence
        assert "class_names[1] is \"b\" at 'one' and null at 'guardian'" in sentence


def test_terms_of_any_shape_are_compared_and_of_many_differences_some_are_said():
    names = ("guardian", "one")
    assert difference({"teachers": {"a": 1, "b": 2}}, {"teachers": {"b": 2, "a": 1}}, names) == ""
    assert difference({"classes": ["a", "b"]}, {"classes": ["b", "a"]}, names) == (
        "classes[0] is \"b\" at 'one' and \"a\" at 'guardian'; classes[1] is \"a\" at 'one' and \"b\" at 'guardian'"
    )
    assert difference({"n": 3}, None, names).startswith("n is null at 'one' and 3 at 'guardian'")
    many = difference({}, {str(number): "\x1b[2J" for number in range(20)}, names)
    assert many.endswith("; and 12 more")
    assert "\x1b" not in many


@pytest.mark.parametrize(
    ("server_name", "peer", "sentence"),
    [
        ("student", "guardian", "its certificate is not that of 'guardian'"),
        ("expired guardian", "guardian", "was not signed by the authority we trust, or it has expired"),
    ],
)
def test_a_server_that_is_not_who_it_should_be_is_refused(server_name, peer, sentence, wires):
    server = wires(server_name)
    port = server.listen("127.0.0.1:0", {"one": "teacher"})
    server.begin(SESSION)
    client = wires("one", patience=1.0)
    client.connect(peer, "guardian", f"127.0.0.1:{port}", convenes=True)
    assert sentence in str(_failure(client, 5.0))


def test_a_teachers_certificate_serves_nobody(wires):
    """A teacher party that listens in the guardian's place: its certificate is none for servers."""
    server = wires("two")
    port = server.listen("127.0.0.1:0", {"one": "teacher"})
    server.begin(SESSION)
    client = wires("one", patience=0.5)
    client.connect("two", "guardian", f"127.0.0.1:{port}", convenes=True)
    error = str(_failure(client, 5.0))
    assert "certificate" in error or "says it is" in error


def test_an_address_that_is_taken_is_an_error(guardian, wires):
    _, address = guardian
    with pytest.raises(TransportError, match="cannot listen at"):
        wires("student").listen(address, {})


class Raw:
    """A peer that speaks gRPC with good credentials, and writes what it likes."""

    def __init__(self, credentials, address, size=64 * 2**20):
        tls = grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate)
        options = [
            ("grpc.ssl_target_name_override", "guardian"),
            ("grpc.max_send_message_length", size),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self.channel = grpc.secure_channel(address, tls, options=options)
        self.call = self.channel.stream_stream("/terrine.Party/Exchange")

    def exchange(self, messages, timeout=10.0):
        """Send these, read to the end, and return (answers, status, details)."""
        answers, done = [], threading.Event()

        def requests():
            yield from messages
            done.wait(timeout)  # the stream stays open, as a peer's does

        stream = self.call(requests(), timeout=timeout)
        try:
            answers.extend(stream)
            return answers, grpc.StatusCode.OK, ""
        except grpc.RpcError as error:
            return answers, error.code(), error.details()
        finally:
            done.set()
            stream.cancel()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.channel.close()


def hello(**changes):
    values = {"name": "one", "role": "teacher", "instance": "a", "session": SESSION, "met": None, "received": 0}
    return greeting_message(**{**values, "terms": TERMS, "greeting": {}, **changes})


def message(kind, number, body=b""):
    return kind + number.to_bytes(8, "big") + body


def test_a_teacher_that_poses_as_another_is_refused(guardian, people):
    server, address = guardian
    with Raw(people["two"], address) as raw:
        for changes in ({"name": "one"}, {"name": "two", "role": "student"}, {"name": "two", "role": "guardian"}):
            _, status, details = raw.exchange([hello(**changes)])
            assert status is grpc.StatusCode.PERMISSION_DENIED
            assert "a party speaks for itself, in one role" in details
            assert "'two' was refused" in until(server, Malformed).reason


def test_connections_of_one_party_that_never_greet_keep_nobody_else_out(guardian, people, wires):
    server, address = guardian
    tls = people["two"]
    held = []
    for _ in range(60):
        channel = Raw(tls, address)
        held.append((channel, channel.call(iter(threading.Event().wait, True))))
    try:
        join(wires("one"), address).send("guardian", b"x")
        assert until(server, Arrived).content == b"x"
        # Of its own connections the party has four that say nothing; a client comes again until there is room.
        deadline = time.monotonic() + 30
        while sum(call.done() for _, call in held) < 56 and time.monotonic() < deadline:
            time.sleep(0.05)
        ended = [call for _, call in held if call.done() and call.code() is grpc.StatusCode.UNAVAILABLE]
        assert len(ended) == 56
        assert "'two' have yet to greet" in ended[0].details()
        late = wires("two")
        late.connect("guardian", "guardian", address, convenes=True)
        time.sleep(0.3)
        for channel, _ in held:
            channel.channel.close()
        assert until(late, SessionOffered).session == SESSION
    finally:
        for channel, _ in held:
            channel.channel.close()


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([b""], "did not greet"),
        ([message(b"F", 1, b"x")], "did not greet"),
        ([b"H" + bytes(8) + b"{"], "greeting cannot be read"),
        ([b"H" + bytes(8) + b"[]"], "greeting cannot be read"),
        ([b"H" + bytes(8) + b"[" * 100_000], "greeting cannot be read"),
        ([hello(received=-1)], "greeting cannot be read"),
        ([hello(received=True)], "greeting cannot be read"),
        ([hello(name="o" * 500)], "greeting cannot be read"),
        ([hello(greeting=["x"])], "greeting cannot be read"),
        ([b"H" + bytes(2**20)], "may have"),
        ([hello(), b"F123"], "less than a message"),
        ([hello(), message(b"X", 1)], "no known kind"),
        ([hello(), message(b"H", 1)], "no known kind"),
        ([hello(), message(b"F", 2, b"x")], "message 2 came where 1 was due"),
        ([hello(), message(b"F", 1, b"x"), message(b"F", 1, b"x")], "message 1 came where 2 was due"),
        ([hello(), message(b"F", 2**64 - 1)], "was due"),
        ([hello(), message(b"A", 5)], "acknowledges message 5, and 0 were sent"),
        ([hello(), message(b"A", 0, b"x")], "with something in it"),
        ([hello(), message(b"N", 1, b"{")], "note that cannot be read"),
        ([hello(), message(b"N", 1, b"[1]")], "note that cannot be read"),
    ],
)
def test_what_is_no_message_closes_the_connection_with_the_senders_name(messages, reason, guardian, people):
    server, address = guardian
    with Raw(people["one"], address) as raw:
        _, status, details = raw.exchange(messages)
        assert status is grpc.StatusCode.INVALID_ARGUMENT, details
        assert reason in details
        event = until(server, Malformed)
        assert event.peer == "one"
        assert reason in event.reason


def test_an_oversized_message_is_refused_and_nothing_of_it_is_kept(guardian, people, wires):
    server, address = guardian
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Raw(people["one"], address) as raw:
        answers, status, details = raw.exchange([hello(), message(b"F", 1, bytes(LARGEST_FRAME + 1))])
        assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in details
        _, status, _ = raw.exchange([hello(), message(b"F", 1, bytes(48 * 2**20))])
        assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert json.loads(answers[0][9:])["name"] == "guardian"
    # What this very process made to send it is in the figure too.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000
    client = join(wires("two"), address)
    client.send("guardian", b"still there")
    assert until(server, Arrived).content == b"still there"
    with pytest.raises(TransportError, match="is larger than"):
        client.send("guardian", bytes(LARGEST_FRAME + 1))


def test_a_thousand_malformed_messages_neither_crash_nor_hang_it(guardian, people, wires):
    """Random bytes, and good messages with bytes flipped, cut off, or doubled."""
    server, address = guardian
    generator = random.Random(4)
    good = [hello(), message(b"F", 1, b"x" * 40), message(b"N", 2, b'{"a": 1}'), message(b"A", 0)]
    with Raw(people["one"], address) as raw:
        for number in range(250):
            spoilt = [bytearray(part) for part in good]
            for _ in range(4):  # four messages of each stream are spoilt
                part = generator.choice(spoilt)
                match generator.randrange(4):
                    case 0 if part:
                        part[generator.randrange(len(part))] ^= 1 << generator.randrange(8)
                    case 1:
                        del part[generator.randrange(len(part) + 1) :]
                    case 2:
                        part[:] = generator.randbytes(generator.randrange(60))
                    case _:
                        part.extend(bytes(part))
            # A few of them leave a stream that nothing is wrong with, which ends when the time is up.
            raw.exchange([bytes(part) for part in spoilt] + [b"the end"], timeout=1.0)
            if number % 50 == 0:
                while server.next(0.0) is not None:
                    pass
    while server.next(0.1) is not None:
        pass
    client = join(wires("two"), address)
    client.send("guardian", b"still there")
    assert until(server, Arrived).content == b"still there"


def test_a_link_keeps_what_is_not_acknowledged_and_nothing_else():
    link = Link("one", "teacher")
    for body in (b"a", b"bb", b"ccc"):
        link.put(b"F", body)
    link.trim(2)
    assert ([number for number, _, _ in link.outgoing], link.kept) == ([3], 3)
    link.trim(2)
    assert link.kept == 3
    assert not link.meet("first", received=2)
    assert link.meet("second", received=0)  # a new process has nothing: what is left is numbered from 1
    assert [number for number, _, _ in link.outgoing] == [1]
    link.reset()
    link.meet("third", received=2)  # ours is the new process: the first two are there already
    for body in (b"a", b"b", b"c"):
        link.put(b"F", body)
    assert [number for number, _, _ in link.outgoing] == [3]
