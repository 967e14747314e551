"""Addresses of connections as text."""

from __future__ import annotations

import ipaddress

import pytest

from ingero.capture.records import peer_addresses
from ingero.capture.records.peer_addresses import TOO_MANY, PeerAddresses
from tests.unit.kept_rows import MemorySink


def ends(source: str, destination: str) -> bytes:
    """As the kernel side tells them: v4 mapped into v6."""

    def packed(text: str) -> bytes:
        address = ipaddress.ip_address(text)
        return address.packed if address.version == 6 else b"\0" * 10 + b"\xff" * 2 + address.packed

    return packed(source) + packed(destination)


@pytest.mark.parametrize(
    ("source", "destination"), [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8::2"), ("::1", "::1")]
)
def test_both_ends_are_named(source: str, destination: str) -> None:
    sink = MemorySink()
    number = PeerAddresses(sink.intern).number(ends(source, destination))
    assert sink.texts[number] == f"{source} > {destination}"


def test_a_socket_without_addresses_has_no_text() -> None:
    assert PeerAddresses(MemorySink().intern).number(bytes(32)) == 0


def test_beyond_the_room_for_names_the_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_addresses, "_MAX_PAIRS", 1)
    sink = MemorySink()
    peers = PeerAddresses(sink.intern)
    numbers = [peers.number(ends("10.0.0.1", f"10.0.0.{last}")) for last in (2, 3, 2)]
    assert [sink.texts[number] for number in numbers] == ["10.0.0.1 > 10.0.0.2", TOO_MANY, "10.0.0.1 > 10.0.0.2"]
