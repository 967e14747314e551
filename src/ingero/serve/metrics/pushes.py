"""Pushes metrics to an OTLP receiver every ten seconds, in a thread of its own.

Nothing is kept for later: sums are cumulative, so the next push holds whatever one that failed would have held.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPSConnection
from types import TracebackType
from urllib.parse import unquote

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from ingero.errors import IngeroError
from ingero.serve.addresses import Address
from ingero.serve.metrics import catalogue
from ingero.serve.metrics.otlp import as_request
from ingero.serve.metrics.registry import Registry

logger = logging.getLogger(__name__)

PATH = "/v1/metrics"
CERTIFICATE_VARIABLE, HEADERS_VARIABLE = "OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_EXPORTER_OTLP_HEADERS"
HISTOGRAM_VARIABLE = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
_EXPONENTIAL, _EXPLICIT = "base2_exponential_bucket_histogram", "explicit_bucket_histogram"
_PERIOD_S = 10.0
_PATIENCE_S = 5.0  # for the receiver to take and to answer; the end of a recording waits that long
_MOST_ANSWERED_BYTES = 1 << 20


class PushError(IngeroError):
    """What is needed to reach the receiver is missing or cannot be used."""


class RefusedError(Exception):
    """The receiver did not take a push."""


class Pushes:
    """Pushes within a `with` block, and once more at its end.

    is_plain: without TLS. node: name of this machine.
    failed, last_error: how many pushes were not taken, and why the last one was not, "" if it was.

    Raises:
        PushError: the certificate, the headers or the kind of histograms that the environment names cannot be used.
    """

    def __init__(
        self,
        receiver: Address,
        registry: Registry,
        *,
        node: str,
        is_plain: bool = False,
        environ: Mapping[str, str] = os.environ,
        period_s: float = _PERIOD_S,
    ) -> None:
        self._receiver, self._registry, self._node, self._period_s = receiver, registry, node, period_s
        self._tls = None if is_plain else _tls(environ.get(CERTIFICATE_VARIABLE) or None)
        self._headers = {**_headers(environ.get(HEADERS_VARIABLE, "")), "Content-Type": "application/x-protobuf"}
        self._is_explicit = _is_explicit(environ.get(HISTOGRAM_VARIABLE, ""))
        self.failed, self.last_error = 0, ""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ingero-otlp", daemon=True)
        registry.add(catalogue.FAILED_PUSHES, 0)

    def _run(self) -> None:
        while not self._is_over.wait(self._period_s):
            self._push()
        self._push()

    def _push(self) -> None:
        try:
            self._send()
        except Exception as error:  # whatever a receiver does costs this push, and is counted
            self._note_failure(
                f"{type(error).__name__}: {error}" if not isinstance(error, RefusedError) else str(error)
            )
        else:
            if self.last_error:
                logger.info("OTLP: %s takes metrics again", self._receiver)
            self.last_error = ""

    def _note_failure(self, reason: str) -> None:
        if not self.last_error:
            logger.warning("OTLP: %s does not take metrics: %s", self._receiver, reason)
        self.last_error = reason
        self.failed += 1
        self._registry.add(catalogue.FAILED_PUSHES, 1)

    def _send(self) -> None:
        registry = self._registry
        request = as_request(
            registry.read(),
            node=self._node,
            began_ns=registry.began_ns,
            now_ns=time.time_ns(),
            is_explicit=self._is_explicit,
        )
        connection = self._connection()
        try:
            connection.request("POST", PATH, request.SerializeToString(), self._headers)
            answer = connection.getresponse()
            body = answer.read(_MOST_ANSWERED_BYTES)
        finally:
            connection.close()
        if answer.status != 200:
            raise RefusedError(f"HTTP status {answer.status} {answer.reason}")
        _check_taken(body)

    def _connection(self) -> HTTPConnection:
        host, port = self._receiver.host, self._receiver.port
        if self._tls is None:
            return HTTPConnection(host, port, timeout=_PATIENCE_S)
        return HTTPSConnection(host, port, timeout=_PATIENCE_S, context=self._tls)

    def __enter__(self) -> Pushes:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join(2 * _PATIENCE_S)


def _check_taken(body: bytes) -> None:
    try:
        answer = ExportMetricsServiceResponse.FromString(body)
    except DecodeError:
        return  # it said 200; some receivers answer with a text
    refused = answer.partial_success.rejected_data_points
    if refused:
        raise RefusedError(f"{refused} values were refused: {answer.partial_success.error_message[:200]}")


def _tls(certificate: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=certificate)
    except OSError as error:  # an SSLError is one, too
        raise PushError(
            f"{CERTIFICATE_VARIABLE}: {certificate}: {error.strerror or error}", hint="name a PEM file"
        ) from error


def _is_explicit(text: str) -> bool:
    if text not in {"", _EXPONENTIAL, _EXPLICIT}:
        raise PushError(f"{HISTOGRAM_VARIABLE}: {text!r} is no histogram", hint=f"use {_EXPONENTIAL} or {_EXPLICIT}")
    return text == _EXPLICIT


def _headers(text: str) -> dict[str, str]:
    """`name=value,name=value`, values percent-encoded (OpenTelemetry, "Protocol Exporter")."""
    headers = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, separator, value = part.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if not (
            separator and name.isascii() and name.replace("-", "").replace("_", "").isalnum() and value.isprintable()
        ):
            raise PushError(f"{HEADERS_VARIABLE} is no list of headers", hint="write it like name=value,other=value")
        headers[name] = value
    return headers
