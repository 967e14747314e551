"""Why a node did not answer, as a sentence, and whether asking once more can help."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Iterator

import httpcore2

_TLS_ALERTS = {
    "CERTIFICATE_REQUIRED": "it wants a client's certificate: --client-cert and --client-key",
    "UNKNOWN_CA": "it does not know who signed this client's certificate",
    "CERTIFICATE_EXPIRED": "it says that this client's certificate has expired",
    "BAD_CERTIFICATE": "it refuses this client's certificate",
    "CERTIFICATE_UNKNOWN": "it refuses this client's certificate",
    "UNSUPPORTED_CERTIFICATE": "this client's certificate is none for clients",
    "PROTOCOL_VERSION": "it does not speak TLS 1.3",
    "UNSUPPORTED_PROTOCOL": "it does not speak TLS 1.3",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "HTTP_REQUEST": "it does not speak TLS",
}
_UNSIGNED = (18, 19, 20, 21)  # X509_V_ERR_*: self-signed, alone or in the chain; no issuer; no first certificate

_ENDED = (httpcore2.ReadError, httpcore2.WriteError, httpcore2.RemoteProtocolError)
_TRANSPORT = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException)

# Errors of HTTP that are more specific than the system's below them.
_OF_KIND: tuple[tuple[type[Exception], str], ...] = (
    (httpcore2.RemoteProtocolError, "it closed the connection, or does not speak HTTP"),
    (httpcore2.ProtocolError, "it does not speak HTTP"),
    (httpcore2.TimeoutException, "it did not answer in time"),
)


def reason_of(error: Exception) -> str:
    """The reason of an error as a sentence, without text from the node."""
    below = list(_causes(error))
    for one in below:
        if isinstance(one, ssl.SSLError):
            return _tls_reason(one)
    for one in below:
        if isinstance(one, socket.gaierror):
            return "its name cannot be resolved now" if _may_come_back(one) else "its name is not known"
    transport = _transport(error)
    if transport is not None:
        return next((text for kind, text in _OF_KIND if isinstance(transport, kind)), _of_system(below))
    return _of_system(below) if isinstance(error, OSError) else f"unexpected: {type(error).__name__}"


def _of_system(below: list[BaseException]) -> str:
    numbers = [one.errno for one in below if isinstance(one, OSError)]
    known = next((number for number in numbers if number in errno.errorcode), None)
    return "it cannot be reached" if known is None else os.strerror(known or 0).lower()


def is_worth_a_retry(error: Exception) -> bool:
    """Whether a retry may help: nothing listens yet, or a kept connection had ended."""
    if any(isinstance(cause, ssl.SSLError) for cause in _causes(error)):
        return False
    name = next((cause for cause in _causes(error) if isinstance(cause, socket.gaierror)), None)
    if name is not None:
        return _may_come_back(name)
    return isinstance(_transport(error), (httpcore2.ConnectError, *_ENDED))


def was_closed(error: Exception) -> bool:
    """Whether the peer closed an established connection."""
    if any(isinstance(cause, ssl.SSLError) for cause in _causes(error)):
        return False
    return isinstance(_transport(error), _ENDED)


def is_unknown_authority(error: Exception) -> bool:
    """Whether no authority that is trusted here has signed the node's certificate."""
    return any(
        isinstance(cause, ssl.SSLCertVerificationError) and cause.verify_code in _UNSIGNED for cause in _causes(error)
    )


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _UNSIGNED:
            return "its certificate is not trusted: no trusted authority signed it"
        return f"its certificate is not trusted: {error.verify_message.rstrip('.').lower()}"
    name = (error.reason or "").rpartition("ALERT_")[2]
    return _TLS_ALERTS.get(name, f"TLS: {name.lower().replace('_', ' ') or 'the handshake failed'}")


def _may_come_back(error: socket.gaierror) -> bool:
    return error.errno == socket.EAI_AGAIN


def _transport(error: BaseException) -> BaseException | None:
    """The error of the connection itself, below the error of the HTTP layer."""
    return next((cause for cause in _causes(error) if isinstance(cause, _TRANSPORT)), None)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes."""
    seen: list[BaseException] = [error]
    while seen:
        one = seen.pop()
        yield one
        seen += [*(getattr(one, "exceptions", ())), *filter(None, (one.__cause__ or one.__context__,))]
