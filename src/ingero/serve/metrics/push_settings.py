"""How metrics are pushed: protocol, headers, temporality and the rest that OpenTelemetry's variables say."""

from __future__ import annotations

import enum
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from ingero.serve.otlp_endpoint import PushError, pairs

_PREFIX, _SIGNAL = "OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_METRICS_"
CERTIFICATE_VARIABLE, HEADERS_VARIABLE = f"{_PREFIX}CERTIFICATE", f"{_PREFIX}HEADERS"
PROTOCOL_VARIABLE, COMPRESSION_VARIABLE = f"{_PREFIX}PROTOCOL", f"{_PREFIX}COMPRESSION"
TIMEOUT_VARIABLE = f"{_PREFIX}TIMEOUT"
CLIENT_CERTIFICATE_VARIABLE, CLIENT_KEY_VARIABLE = f"{_PREFIX}CLIENT_CERTIFICATE", f"{_PREFIX}CLIENT_KEY"
HISTOGRAM_VARIABLE = f"{_SIGNAL}DEFAULT_HISTOGRAM_AGGREGATION"
TEMPORALITY_VARIABLE = f"{_SIGNAL}TEMPORALITY_PREFERENCE"
SERVICE_VARIABLE, RESOURCE_VARIABLE = "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"
INTERVAL_VARIABLE = "OTEL_METRIC_EXPORT_INTERVAL"

_EXPONENTIAL, _EXPLICIT = "base2_exponential_bucket_histogram", "explicit_bucket_histogram"
_PATIENCE_S = 5.0  # for the receiver to take and to answer; the end of a recording waits that long
_PERIOD_S = 10.0
_MAX_MS = 24 * 3600 * 1000


class Protocol(enum.Enum):
    """How a push is written: the value is OpenTelemetry's name."""

    PROTOBUF = "http/protobuf"
    JSON = "http/json"

    @property
    def content_type(self) -> str:
        """The header's value."""
        return "application/json" if self is Protocol.JSON else "application/x-protobuf"


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSettings:
    """Settings from the environment. tls: for receivers behind TLS. attributes: of the resource, overriding ours."""

    protocol: Protocol
    headers: Mapping[str, str]
    tls: ssl.SSLContext
    is_compressed: bool
    is_explicit: bool
    is_delta: bool
    attributes: Mapping[str, str]
    timeout_s: float
    period_s: float


def push_settings(environ: Mapping[str, str]) -> PushSettings:
    """Read the settings from OpenTelemetry's variables; unset ones get the defaults.

    Raises:
        PushError: a value cannot be used.
    """

    def of(variable: str) -> tuple[str, str]:
        """The value and who says it: the variable of the signal wins."""
        signal = variable.replace(_PREFIX, _SIGNAL)
        return (environ[signal], signal) if environ.get(signal) else (environ.get(variable, ""), variable)

    attributes = pairs(environ.get(RESOURCE_VARIABLE, ""), RESOURCE_VARIABLE, "attributes")
    if service := environ.get(SERVICE_VARIABLE):
        attributes["service.name"] = service
    key, _ = of(CLIENT_KEY_VARIABLE)
    return PushSettings(
        protocol=_protocol(*of(PROTOCOL_VARIABLE)),
        headers=_headers(*of(HEADERS_VARIABLE)),
        tls=_tls(*of(CERTIFICATE_VARIABLE), *of(CLIENT_CERTIFICATE_VARIABLE), key),
        is_compressed=_one_of(*of(COMPRESSION_VARIABLE), ("none", "gzip")) == "gzip",
        is_explicit=_one_of(environ.get(HISTOGRAM_VARIABLE, ""), HISTOGRAM_VARIABLE, (_EXPONENTIAL, _EXPLICIT))
        == _EXPLICIT,
        # lowmemory: what is counted as it happens, which all of ours is, as delta
        is_delta=_one_of(
            environ.get(TEMPORALITY_VARIABLE, "").lower(), TEMPORALITY_VARIABLE, ("cumulative", "delta", "lowmemory")
        )
        != "cumulative",
        attributes=attributes,
        timeout_s=_seconds(*of(TIMEOUT_VARIABLE), _PATIENCE_S),
        period_s=_seconds(environ.get(INTERVAL_VARIABLE, ""), INTERVAL_VARIABLE, _PERIOD_S),
    )


def _protocol(text: str, variable: str) -> Protocol:
    if text == "grpc":
        raise PushError(
            f"{variable}: gRPC is not supported",
            hint=f"{variable}=http/protobuf, and the receiver's port for HTTP: 4318 where gRPC has 4317",
        )
    return Protocol(_one_of(text, variable, tuple(one.value for one in Protocol)))


def _one_of(text: str, variable: str, known: tuple[str, ...]) -> str:
    """The value; the first of them where nothing is said."""
    if text and text not in known:
        raise PushError(f"{variable}: {text!r} is not supported", hint=f"use {' or '.join(known)}")
    return text or known[0]


def _headers(text: str, variable: str) -> dict[str, str]:
    headers = pairs(text, variable, "headers")
    for name in headers:
        if not name.replace("-", "").replace("_", "").isalnum():
            raise PushError(
                f"{variable} is not a list of headers: {name!r} is not one", hint="write it like name=value,other=value"
            )
    return headers


def _seconds(text: str, variable: str, default_s: float) -> float:
    if not text:
        return default_s
    if not text.isdecimal() or not 0 < int(text) <= _MAX_MS:
        raise PushError(f"{variable}: {text!r} is not a time", hint="write milliseconds: 10000 is ten seconds")
    return int(text) / 1000


def _tls(authority: str, of_authority: str, certificate: str, of_certificate: str, key: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=authority or None)
    except OSError as error:  # an SSLError is one, too
        raise PushError(f"{of_authority}: {authority}: {error.strerror or error}", hint="name a PEM file") from error
    if certificate:
        try:
            context.load_cert_chain(certificate, key or None)
        except OSError as error:
            raise PushError(
                f"{of_certificate}: {certificate}: {error.strerror or error}", hint="name PEM files"
            ) from error
    return context
