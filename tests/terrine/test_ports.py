"""Ports that no outgoing connection can take."""

import socket

import pytest

from terrine import ports
from terrine.errors import TerrineError


def test_what_the_system_gives_to_connections_is_left_alone(monkeypatch, tmp_path):
    said = tmp_path / "range"
    said.write_text("32768\t60999\n")
    monkeypatch.setattr(ports, "_OUTGOING", said)
    drawn = ports.free_ports(20)
    assert len(set(drawn)) == 20
    assert all(ports.LOWEST <= port < 32768 for port in drawn)


def test_a_preferred_port_is_taken_when_nobody_listens_there():
    (port,) = ports.free_ports()
    assert ports.free_ports(1, port) == [port]
    with socket.create_server((ports.HOST, port)):
        (other,) = ports.free_ports(1, port)
        assert other != port


def test_where_every_port_is_taken_a_sentence_says_so(monkeypatch):
    monkeypatch.setattr(ports, "_is_free", lambda port: False)
    with pytest.raises(TerrineError, match=r"No free port at 127\.0\.0\.1 between 10000 and"):
        ports.free_ports()
