"""Certificates that change while a node answers: no client fails, and the next ones meet the new one."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from ingero.fleet.access import client_context
from ingero.fleet.authority import IssuedCertificate
from ingero.fleet.node_lists import Node
from ingero.serve.http import renewal
from ingero.serve.http.tls import tls_context
from tests.unit.fleet.test_server import application_bytes
from tests.unit.fleet_nodes import NOW, Certificates, make_certificates, record_node, serving_node

ROTATIONS, HALF_WRITTEN = 20, 5


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates") / "own")


@pytest.fixture
def made(certificates: Certificates) -> IssuedCertificate:
    return certificates.make("node")


@pytest.fixture
def node(
    tmp_path: Path, certificates: Certificates, made: IssuedCertificate, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Node]:
    monkeypatch.setattr(renewal, "_CHECK_EVERY_S", 0.0)
    with serving_node(record_node(tmp_path / "node.db", "n"), made=made, client_ca=certificates.ca) as found:
        yield found


@pytest.fixture(scope="module")
def context(certificates: Certificates) -> ssl.SSLContext:
    found = client_context(certificates.client())
    assert found is not None
    return found


def serial(node: Node, context: ssl.SSLContext) -> int:
    with (
        socket.create_connection(("127.0.0.1", node.port), timeout=30) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as client,
    ):
        der = client.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


def serial_of(made: IssuedCertificate) -> int:
    return x509.load_pem_x509_certificate(made.certificate.read_bytes()).serial_number


def test_requests_go_on_while_certificates_change(
    node: Node, context: ssl.SSLContext, certificates: Certificates, made: IssuedCertificate
) -> None:
    failures: list[str] = []
    count = 0
    is_over = threading.Event()

    def ask() -> None:
        nonlocal count
        while not is_over.is_set():
            connection = http.client.HTTPSConnection("127.0.0.1", node.port, context=context, timeout=60)
            try:
                connection.request("GET", "/api/v2/time")
                if connection.getresponse().status != 200:
                    failures.append("status")
            except OSError as error:
                failures.append(repr(error))
            finally:
                connection.close()
            count += 1

    asking = threading.Thread(target=ask)
    asking.start()
    for rotation in range(ROTATIONS):
        if rotation < HALF_WRITTEN:  # as a tool does that writes in place, the key first
            whole = made.certificate.read_bytes()
            made.certificate.write_bytes(whole[: len(whole) // 2])
            time.sleep(0.05)
        certificates.make("node")
        before = count
        while count < before + 3 and not failures:
            time.sleep(0.01)
    is_over.set()
    asking.join()
    assert failures == []
    assert count >= 3 * ROTATIONS
    assert serial(node, context) == serial_of(made)


def test_a_pair_that_does_not_fit_leaves_the_last_one(
    node: Node,
    context: ssl.SSLContext,
    certificates: Certificates,
    made: IssuedCertificate,
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = serial(node, context)
    made.key.write_bytes(certificates.make("other").key.read_bytes())
    assert [serial(node, context) for _ in range(3)] == [good] * 3
    assert [record.message.startswith("the certificate of before stays") for record in caplog.records] == [True]


def test_who_may_connect_stays_the_same(
    node: Node, context: ssl.SSLContext, certificates: Certificates, made: IssuedCertificate, tmp_path: Path
) -> None:
    first = serial_of(made)
    certificates.make("node")
    assert serial(node, context) != first
    bare = ssl.create_default_context(cafile=certificates.ca)
    stranger = make_certificates(tmp_path / "stranger").make("x", "x", is_server=False)
    other = ssl.create_default_context(cafile=certificates.ca)
    other.load_cert_chain(stranger.certificate, stranger.key)
    assert [application_bytes(node, each) for each in (bare, other)] == [b"", b""]


def test_files_are_looked_at_once_a_second_at_most(certificates: Certificates) -> None:
    made = certificates.make("clocked")
    now_s = [0.0]
    found = renewal._Renewal(made.certificate, made.key, tls_context, lambda: now_s[0])
    certificates.make("clocked", now=NOW + timedelta(seconds=1))
    assert found.current() is None
    now_s[0] = 1.1
    assert found.current() is not None
