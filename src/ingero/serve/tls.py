"""TLS for the servers: 1.3 only, with a given certificate or one made on the fly."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ingero.errors import IngeroError

_LIFE = timedelta(days=30)  # of a certificate that is made anew at every start
_CLOCK_SKEW = timedelta(minutes=5)


class CertificateError(IngeroError):
    """A certificate or its key cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate with its private key, as PEM texts."""

    certificate: bytes
    key: bytes

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate, as clients show it."""
        text = hashlib.sha256(ssl.PEM_cert_to_DER_cert(self.certificate.decode())).hexdigest().upper()
        return ":".join(text[at : at + 2] for at in range(0, len(text), 2))


def self_signed(hosts: Sequence[str], *, now: datetime) -> Certificate:
    """A certificate for these names and addresses, ECDSA P-256; it can sign nothing else."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ingero")])
    usage = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=False, crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Certificate(certificate=made.public_bytes(serialization.Encoding.PEM), key=private)


def read_certificate(certificate: Path, key: Path) -> Certificate:
    """The certificate (with its chain) and the key of two PEM files.

    Raises:
        CertificateError: a file cannot be read.
    """
    try:
        return Certificate(certificate=certificate.read_bytes(), key=key.read_bytes())
    except OSError as error:
        raise CertificateError(f"{error.filename}: {error.strerror}", hint="name PEM files you may read") from error


def tls_context(certificate: Certificate) -> ssl.SSLContext:
    """A server's context that speaks TLS 1.3 and nothing older.

    Raises:
        CertificateError: certificate and key are no PEM texts, or do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # OpenSSL takes files only; the folder is nobody else's, and gone before the first connection
    with tempfile.TemporaryDirectory(prefix="ingero-tls-") as folder:
        path = Path(folder) / "pair.pem"
        path.touch(mode=0o600)
        path.write_bytes(certificate.key + b"\n" + certificate.certificate)
        try:
            context.load_cert_chain(path)
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(
                f"the TLS certificate and key cannot be used: {error}",
                hint="give a PEM certificate and its unencrypted PEM key, or neither: one is then made on the fly",
            ) from error
    return context


def publish_certificate(certificate: Certificate, path: Path) -> bool:
    """Puts the certificate (never its key) where clients can be told to trust it; answers whether that worked."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o644)
            file.write(certificate.certificate)
        Path(name).replace(path)  # a link at the path is replaced, not followed
    except OSError:
        return False
    return True


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
