"""TLS for the servers: 1.3 only, with a given certificate or one made on the fly."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import signal
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ingero.errors import IngeroError

_LIFE = timedelta(days=30)  # of a certificate that is made anew at every start
_CLOCK_SKEW = timedelta(minutes=5)
_ENDING = (signal.SIGTERM, signal.SIGHUP)  # SIGINT is an exception, which cleans up by itself


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

    @property
    def names(self) -> tuple[str, ...]:
        """The names and addresses that it was made for; none where it is no PEM text."""
        try:
            made = x509.load_pem_x509_certificate(self.certificate)
            found = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (ValueError, x509.ExtensionNotFound):
            return ()
        addresses = map(str, found.get_values_for_type(x509.IPAddress))
        return (*found.get_values_for_type(x509.DNSName), *addresses)


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
        .add_extension(x509.SubjectAlternativeName([general_name(host) for host in hosts]), critical=False)
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
    # OpenSSL takes files only: this one has no name on any disk, so that no end of the process leaves the key behind
    with os.fdopen(os.memfd_create("ingero-tls"), "wb") as pair:
        pair.write(certificate.key + b"\n" + certificate.certificate)
        pair.flush()
        try:
            context.load_cert_chain(f"/proc/self/fd/{pair.fileno()}")
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(
                f"the TLS certificate and key cannot be used: {error}",
                hint="give a PEM certificate and its unencrypted PEM key, or neither: one is then made on the fly",
            ) from error
    return context


@contextmanager
def published(certificate: Certificate, path: Path) -> Iterator[bool]:
    """Write the certificate (never its key) to a file that clients can trust, until the server ends.

    Answers whether that worked. A signal that ends the process takes it away, too; after SIGKILL it lies there until
    the next server replaces it.
    """
    is_there = _publish(certificate, path)
    try:
        with _before_dying(lambda: _take_away(certificate, path)):
            yield is_there
    finally:
        _take_away(certificate, path)


@contextmanager
def _before_dying(act: Callable[[], None]) -> Iterator[None]:
    """Run an action before a signal ends the process silently."""

    def ending(number: int, _: FrameType | None) -> None:
        act()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    is_main = threading.current_thread() is threading.main_thread()  # no other may say what signals do
    deadly = [one for one in _ENDING if is_main and signal.getsignal(one) is signal.SIG_DFL]
    for number in deadly:
        signal.signal(number, ending)
    try:
        yield
    finally:
        for number in deadly:
            signal.signal(number, signal.SIG_DFL)


def _publish(certificate: Certificate, path: Path) -> bool:
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


def _take_away(certificate: Certificate, path: Path) -> None:
    """Remove the certificate's file, unless another server has replaced it meanwhile."""
    with contextlib.suppress(OSError):
        if path.read_bytes() == certificate.certificate:
            path.unlink()


def general_name(host: str) -> x509.GeneralName:
    """A name or an address in the form used in certificates."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
