"""A private certificate authority: its certificate, and those of nodes and clients that it signs.

Keys are ECDSA P-256. The authority may sign nothing that signs; a node's certificate is for servers, a client's for
clients, so that a stolen node key cannot be used to query other nodes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ingero.errors import IngeroError
from ingero.program import command
from ingero.serve.http.tls import general_name

CA_CERTIFICATE, CA_KEY = "ca.pem", "ca.key"
_CA_DAYS = 3650
_CLOCK_SKEW = timedelta(minutes=5)  # certificates are valid from this long before now


class AuthorityError(IngeroError):
    """A certificate cannot be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCertificate:
    """A certificate and key that were written. names: what it is for. until: end of its validity."""

    certificate: Path
    key: Path
    names: tuple[str, ...]
    until: datetime


def make_authority(folder: Path, *, name: str, now: datetime) -> IssuedCertificate:
    """Create an authority in the folder, which is readable by its owner alone.

    Raises:
        AuthorityError: there is one already, or the folder cannot be written.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, subject, key, now, _CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise AuthorityError(f"{folder}: {error.strerror}", hint="name another folder with --dir") from error
    made = builder.sign(key, hashes.SHA256())
    paths = folder / CA_CERTIFICATE, folder / CA_KEY
    return _write(made, key, *paths, names=(name,), replaces=False)


def make_certificate(
    folder: Path, name: str, *, names: Sequence[str], is_server: bool, days: int, replaces: bool, now: datetime
) -> IssuedCertificate:
    """Create NAME.pem, a certificate for these names and addresses signed by the folder's authority, and NAME.key.

    replaces: an existing pair is replaced, file by file.

    Raises:
        AuthorityError: there is no authority, a certificate of that name is there, or a file cannot be written.
    """
    authority, authority_key = _authority(folder)
    if now + timedelta(days=days) > authority.not_valid_after_utc:
        raise AuthorityError(
            f"it would outlive its authority, which ends on {authority.not_valid_after_utc:%Y-%m-%d}",
            hint=f"fewer --days, or a new authority: {command('certs', 'init', '--dir', 'NEW')}",
        )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if is_server else ExtendedKeyUsageOID.CLIENT_AUTH
    of_authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    builder = (
        _builder(subject, authority.subject, key, now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.SubjectAlternativeName([general_name(name) for name in names]), critical=False)
        .add_extension(of_authority, critical=False)
    )
    made = builder.sign(authority_key, hashes.SHA256())
    return _write(made, key, folder / f"{name}.pem", folder / f"{name}.key", names=tuple(names), replaces=replaces)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=signs, crl_sign=signs, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    way_out = command("certs", "init", "--dir", folder)
    try:
        certificate = x509.load_pem_x509_certificate((folder / CA_CERTIFICATE).read_bytes())
        key = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), password=None)
    except FileNotFoundError as error:
        raise AuthorityError(f"there is no certificate authority in {folder}", hint=way_out) from error
    except OSError as error:
        raise AuthorityError(f"{error.filename}: {error.strerror}", hint="only its owner may read the key") from error
    except (ValueError, TypeError) as error:
        raise AuthorityError(f"the certificate authority in {folder} cannot be used", hint=way_out) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise AuthorityError(f"{folder / CA_KEY} is not the key of {folder / CA_CERTIFICATE}", hint=way_out)
    return certificate, key


def _write(
    made: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    certificate: Path,
    private: Path,
    *,
    names: tuple[str, ...],
    replaces: bool,
) -> IssuedCertificate:
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        _put(private, secret, 0o600, replaces=replaces)
        try:
            _put(certificate, made.public_bytes(pem), 0o644, replaces=replaces)
        except FileExistsError:
            private.unlink()  # no key without a certificate
            raise
    except FileExistsError as error:
        raise AuthorityError(f"{error.filename} is there already", hint=_way_out(Path(error.filename))) from error
    except OSError as error:
        raise AuthorityError(f"{error.filename}: {error.strerror}", hint="name another folder with --dir") from error
    return IssuedCertificate(certificate=certificate, key=private, names=names, until=made.not_valid_after_utc)


def _way_out(path: Path) -> str:
    if path.name in (CA_CERTIFICATE, CA_KEY):
        return f"use it, or name another folder: {command('certs', 'init', '--dir', 'NEW')}"
    return "--force puts a new one in its place"


def _put(path: Path, content: bytes, mode: int, *, replaces: bool) -> None:
    """Write a file that has its final mode from the first byte on."""
    target = path.with_name(f".{path.name}.new") if replaces else path
    if replaces:
        target.unlink(missing_ok=True)
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "wb") as file:
        os.fchmod(handle, mode)
        file.write(content)
        file.flush()
        os.fsync(handle)
    if replaces:
        target.replace(path)
