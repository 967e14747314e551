"""Whom the dashboard lets in, and what it never sends."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ingero.serve.dashboard.exposure import Exposure, ExposureError, check_exposure
from ingero.serve.http.addresses import parse_address
from tests.unit.dashboard_recording import make_recording, serving

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_recording(tmp_path_factory.mktemp("secure") / "recording.db")


@pytest.fixture(scope="module")
def guarded(database: Path) -> Iterator[Exposure]:
    with serving(database, token=TOKEN) as exposure:
        yield exposure


def unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def ask(
    exposure: Exposure, path: str, *, method: str = "GET", body: str = "", context: ssl.SSLContext | None = None,
    **headers: str,
) -> http.client.HTTPResponse:  # fmt: skip
    connection = http.client.HTTPSConnection(
        "127.0.0.1", exposure.address.port, context=context or unverified(), timeout=60
    )
    connection.request(method, path, body or None, {name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


def test_tls_1_2_is_refused(guarded: Exposure) -> None:
    context = unverified()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        ask(guarded, "/login", context=context)
    assert ask(guarded, "/login").status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.2", "[::2]", "", "[", "localhost.evil"])
def test_another_name_is_refused(guarded: Exposure, host: str) -> None:
    assert ask(guarded, "/login", Host=host).status in {400, 421}


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1"])
def test_its_own_names_are_answered(guarded: Exposure, host: str) -> None:
    assert ask(guarded, "/login", Host=host).status == 200


@pytest.mark.parametrize("path", ["/api/v1/overview", "/api/v1/query", "/api/v1/events", "/openapi.json"])
@pytest.mark.parametrize("shown", ["", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", "Bearer", f"Basic {TOKEN}", TOKEN])
def test_without_the_token_machines_get_401(guarded: Exposure, path: str, shown: str) -> None:
    response = ask(guarded, path, Authorization=shown)
    assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer")


def test_with_the_token_machines_are_answered(guarded: Exposure) -> None:
    assert ask(guarded, "/api/v1/time", Authorization=f"Bearer {TOKEN}").status == 200


def test_people_without_the_token_get_the_form(guarded: Exposure) -> None:
    response = ask(guarded, "/")
    assert (response.status, response.headers["location"]) == (303, "/login")


def test_the_form_gives_a_cookie_that_is_not_the_token(guarded: Exposure) -> None:
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    response = ask(guarded, "/login", method="POST", body=f"token={TOKEN}", **form)
    cookie = response.headers["set-cookie"]
    assert response.status == 303
    assert TOKEN not in cookie
    assert {"httponly", "secure", "samesite=strict"} <= {part.strip().lower() for part in cookie.split(";")}
    assert ask(guarded, "/api/v1/time", Cookie=cookie.partition(";")[0]).status == 200


def test_the_form_refuses_a_wrong_token(guarded: Exposure) -> None:
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    response = ask(guarded, "/login", method="POST", body="token=0123456789abcdef", **form)
    assert (response.status, response.headers["set-cookie"]) == (401, None)


@pytest.mark.parametrize("cookie", ["ingero_session=", "ingero_session=x", "other=1", ";;;", "ingero_session=é"])
def test_a_made_up_cookie_is_refused(guarded: Exposure, cookie: str) -> None:
    assert ask(guarded, "/api/v1/time", Cookie=cookie.encode().decode("latin-1")).status == 401


def test_pages_of_other_sites_may_not_ask(guarded: Exposure) -> None:
    known = {"Authorization": f"Bearer {TOKEN}"}
    assert ask(guarded, "/api/v1/time", Origin="https://evil.example", **known).status == 403
    own = f"https://127.0.0.1:{guarded.address.port}"
    assert ask(guarded, "/api/v1/time", Origin=own, **known).status == 200


@pytest.mark.parametrize("length", ["99999999", "-1", "x"])
def test_a_large_body_is_refused_before_it_is_read(guarded: Exposure, length: str) -> None:
    response = ask(guarded, "/api/v1/query", method="POST", Content_Length=length, Authorization=f"Bearer {TOKEN}")
    assert response.status in {400, 413}


def test_a_client_without_a_certificate_is_refused(database: Path, tmp_path: Path) -> None:
    authority, pair = make_authority(tmp_path)
    with serving(database, client_ca=authority) as exposure:
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            ask(exposure, "/api/v1/time")
        context = unverified()
        context.load_cert_chain(pair)
        assert ask(exposure, "/api/v1/time", context=context).status == 200


@pytest.mark.parametrize("path", ["/login", "/api/v1/time", "/api/v1/nowhere", "/assets/page.js"])
def test_every_answer_keeps_the_page_to_itself(guarded: Exposure, path: str) -> None:
    headers = ask(guarded, path, Authorization=f"Bearer {TOKEN}").headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
    assert headers["server"] is None


@pytest.mark.parametrize(
    ("address", "more", "is_trusted"),
    [
        ("0.0.0.0:1", {}, False),
        ("192.0.2.1:1", {"has_tls": False}, True),
        ("192.0.2.1:1", {"has_tls": False, "token": TOKEN}, False),
        ("127.0.0.1:1", {"token": "short"}, False),
        ("127.0.0.1:1", {"certificate": Path("c.pem")}, False),
        ("127.0.0.1:1", {"has_tls": False, "client_ca": Path("c.pem")}, False),
    ],
)
def test_an_exposure_that_strangers_could_use_is_refused(
    address: str, more: dict[str, object], is_trusted: bool
) -> None:
    exposure = Exposure(address=parse_address(address), **more)  # type: ignore[arg-type]  # as the table says
    with pytest.raises(ExposureError) as raised:
        check_exposure(exposure, is_trusted_network=is_trusted)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("address", "more", "is_trusted"),
    [
        ("127.0.0.1:1", {}, False),
        ("127.0.0.1:1", {"has_tls": False}, False),
        ("0.0.0.0:1", {"token": TOKEN}, False),
        ("0.0.0.0:1", {"client_ca": Path("c.pem")}, False),
        ("192.0.2.1:1", {"has_tls": False, "token": TOKEN}, True),
    ],
)
def test_an_exposure_that_is_safe_is_allowed(address: str, more: dict[str, object], is_trusted: bool) -> None:
    exposure = Exposure(address=parse_address(address), **more)  # type: ignore[arg-type]  # as the table says
    check_exposure(exposure, is_trusted_network=is_trusted)


def make_authority(folder: Path) -> tuple[Path, Path]:
    """The certificate of an authority, and a client's certificate and key that it signed."""
    authority_key, client_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _certificate("authority", authority_key, "authority", authority_key, is_authority=True)
    client = _certificate("client", client_key, "authority", authority_key, is_authority=False)
    pem = serialization.Encoding.PEM
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "authority.pem").write_bytes(authority.public_bytes(pem))
    (folder / "client.pem").write_bytes(client_key.private_bytes(pem, *plain) + client.public_bytes(pem))
    return folder / "authority.pem", folder / "client.pem"


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, issuer_key: ec.EllipticCurvePrivateKey, *,
    is_authority: bool,
) -> x509.Certificate:  # fmt: skip
    now = datetime.now(timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .sign(issuer_key, hashes.SHA256())
    )
