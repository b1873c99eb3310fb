"""Ports outside the range of outgoing connections."""

import socket

from terrine import ports


def test_ports_of_outgoing_connections_are_not_used(monkeypatch, tmp_path):
    said = tmp_path / "range"
    said.write_text("32768\t60999\n")
    monkeypatch.setattr(ports, "_OUTGOING", said)
    drawn = ports.free_ports(20)
    assert len(set(drawn)) == 20
    assert all(ports.LOWEST <= port < 32768 for port in drawn)


def test_a_preferred_port_is_used_if_it_is_free():
    (port,) = ports.free_ports()
    assert ports.free_ports(1, port) == [port]
    with socket.create_server((ports.HOST, port)):
        (other,) = ports.free_ports(1, port)
        assert other != port
