"""MCP over HTTPS: only with TLS 1.3, the token, and this server's own name."""

from __future__ import annotations

import os
import re
import signal
import ssl
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import anyio
import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from ingero.demo.labeled_scenarios import SCENARIOS, record
from ingero.serve.http.addresses import Address, AddressError, listen, parse_address
from ingero.serve.http.tls import Certificate, CertificateError, published, self_signed, tls_context
from ingero.serve.mcp.http import TOKEN_VARIABLE, TokenError, check_token

TOKEN = "0123456789abcdef-and-more"
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


@dataclass(frozen=True, slots=True)
class Listening:
    """A server that answers: its URL, and the certificate to trust."""

    url: str
    certificate: Path
    program: subprocess.Popen[str]

    @property
    def context(self) -> ssl.SSLContext:
        """A client that trusts it."""
        return ssl.create_default_context(cafile=self.certificate)


@contextmanager
def listening(folder: Path, *arguments: str, token: str) -> Iterator[Listening]:
    """`ingero mcp --http :0` for a recording in this folder."""
    database = folder / "scenario.db"
    record(SCENARIOS["cpu-hog"], database)
    environment = {**os.environ, TOKEN_VARIABLE: token}
    command = [sys.executable, "-m", "ingero.cli.main", "mcp", "--http", ":0", "--db", str(database)]
    with subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True, env=environment) as program:
        assert program.stderr is not None
        try:
            said = program.stderr.readline()
            url = re.search(r"https://\S+", said)
            assert url is not None, said + program.stderr.read()
            rest = program.stderr.readline(), program.stderr.readline()
            yield Listening(url[0], folder / "scenario.db.mcp.pem", program)
            assert "SHA-256" in rest[0]
        finally:
            program.terminate()
            program.communicate()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    with listening(tmp_path_factory.mktemp("http"), token=TOKEN) as found:
        yield found


def answer(server: Listening, **headers: str) -> httpx2.Response:
    """The answer to a request with these headers beside the usual ones."""
    with httpx2.Client(verify=server.context, timeout=60) as client:
        return client.post(server.url, headers=HEADERS | headers, json=LIST)


def test_a_client_with_the_token_is_told_the_cause(server: Listening) -> None:
    async def session() -> str:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            httpx2.AsyncClient(verify=server.context, headers=headers, timeout=60) as http,
            Client(streamable_http_client(server.url, http_client=http)) as client,
        ):
            found = (await client.call_tool("explain_incident", {})).structured_content
            assert found is not None
            return str(found["incident"]["cause"])

    assert anyio.run(session) == "cpu-contention"


@pytest.mark.parametrize("header", ["", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, f"Basic {TOKEN}"])
def test_without_the_token_nothing_is_answered(server: Listening, header: str) -> None:
    found = answer(server, **({"authorization": header} if header else {}))
    assert found.status_code == 401
    assert "tools" not in found.text


def test_a_request_for_another_host_is_refused(server: Listening) -> None:
    assert answer(server, authorization=f"Bearer {TOKEN}", host="evil.example").status_code == 421


def test_a_request_from_another_origin_is_refused(server: Listening) -> None:
    assert answer(server, authorization=f"Bearer {TOKEN}", origin="https://evil.example").status_code == 403


def test_tls_1_2_is_refused(server: Listening) -> None:
    context = server.context
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with httpx2.Client(verify=context, timeout=60) as client, pytest.raises(httpx2.ConnectError, match=r"(?i)protocol"):
        client.post(server.url, headers=HEADERS, json=LIST)


def test_a_client_that_does_not_know_the_certificate_refuses_it(server: Listening) -> None:
    with httpx2.Client(timeout=60) as client, pytest.raises(httpx2.ConnectError, match=r"(?i)certificate"):
        client.post(server.url, headers=HEADERS, json=LIST)


def test_the_certificate_made_on_the_fly_is_ecdsa_p_256_for_this_machine(server: Listening) -> None:
    made = x509.load_pem_x509_certificate(server.certificate.read_bytes())
    key = made.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "localhost" in names.get_values_for_type(x509.DNSName)
    assert b"PRIVATE" not in server.certificate.read_bytes()


# What is refused before anything listens


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "gpu-7"])
def test_another_address_than_loopback_needs_a_token(host: str) -> None:
    with pytest.raises(TokenError) as caught:
        check_token("", Address(host, 8443))
    assert TOKEN_VARIABLE in caught.value.hint


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_loopback_may_do_without(host: str) -> None:
    check_token("", Address(host, 8443))


@pytest.mark.parametrize("token", ["short", "sixteen chars \n or", "schlüsselschlüssel"])
def test_a_token_that_is_easy_to_guess_or_no_header_is_refused(token: str) -> None:
    with pytest.raises(TokenError):
        check_token(token, Address("127.0.0.1", 8443))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":8443", Address("127.0.0.1", 8443)),
        ("8443", Address("127.0.0.1", 8443)),
        ("0.0.0.0:1", Address("0.0.0.0", 1)),
        ("[::1]:8443", Address("::1", 8443)),
        ("gpu-7:8443", Address("gpu-7", 8443)),
    ],
)
def test_an_address_without_a_host_is_this_machine_alone(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "gpu-7", ":x", ":70000", "::1:8443", "a:b:1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(AddressError):
        parse_address(text)


def test_a_port_that_is_taken_is_said() -> None:
    with listen(Address("127.0.0.1", 0)) as first, pytest.raises(AddressError, match="in use") as caught:
        listen(Address("127.0.0.1", first.getsockname()[1]))
    assert "another port" in caught.value.hint


@pytest.mark.parametrize("host", ["256.1.1.1", "192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_this_machines_is_said(host: str) -> None:
    with pytest.raises(AddressError, match=f"cannot listen on {host}:9464") as caught:
        listen(Address(host, 9464))
    assert "ip -brief address" in caught.value.hint
    assert "another port" not in caught.value.hint


def test_a_wildcard_answers_to_the_machines_name_only() -> None:
    names = Address("0.0.0.0", 8443).names
    assert os.uname().nodename in names
    assert "0.0.0.0" not in names


# Certificates


def test_a_key_of_another_certificate_is_refused() -> None:
    first, second = (self_signed(["localhost"], now=NOW) for _ in range(2))
    with pytest.raises(CertificateError):
        tls_context(Certificate(certificate=first.certificate, key=second.key))


def test_what_is_no_certificate_is_refused() -> None:
    with pytest.raises(CertificateError):
        tls_context(Certificate(certificate=b"no", key=b"no"))


def test_a_link_at_the_certificates_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target, place = tmp_path / "target", tmp_path / "certificate.pem"
    target.write_text("precious")
    place.symlink_to(target)
    with published(self_signed(["localhost"], now=NOW), place) as is_there:
        assert is_there
        assert stat.S_IMODE(place.lstat().st_mode) == 0o644
    assert target.read_text() == "precious"


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with published(self_signed(["localhost"], now=NOW), tmp_path / "file" / "certificate.pem") as is_there:
        assert not is_there


def test_the_certificate_of_another_server_at_the_same_place_stays(tmp_path: Path) -> None:
    place = tmp_path / "certificate.pem"
    with published(self_signed(["localhost"], now=NOW), place):
        place.write_text("another's")
    assert place.read_text() == "another's"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_server_that_is_ended_takes_its_certificate_away(tmp_path: Path, number: signal.Signals) -> None:
    with listening(tmp_path, token=TOKEN) as server:
        assert answer(server).status_code == 401
        assert server.certificate.exists()
        server.program.send_signal(number)
        server.program.wait()
    assert [path.name for path in tmp_path.iterdir() if "pem" in path.name] == []


def test_a_key_is_never_in_a_file_with_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert tls_context(self_signed(["localhost"], now=NOW)).minimum_version == ssl.TLSVersion.TLSv1_3
