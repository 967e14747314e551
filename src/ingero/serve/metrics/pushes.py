"""Pushes metrics to an OTLP receiver every ten seconds, in a thread of its own.

Nothing is kept for later: the next push holds whatever one that failed would have held.
"""

from __future__ import annotations

import gzip
import logging
import os
import threading
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPSConnection
from types import TracebackType

from google.protobuf.json_format import Parse, ParseError
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from ingero.serve.metrics import catalogue
from ingero.serve.metrics.otlp import Deltas, as_json, as_request
from ingero.serve.metrics.push_settings import Protocol, push_settings
from ingero.serve.metrics.registry import Registry
from ingero.serve.otlp_endpoint import Endpoint

logger = logging.getLogger(__name__)

_MAX_ANSWERED_BYTES = 1 << 20
_GRPC_PORT = 4317


class RefusedError(Exception):
    """The receiver did not accept a push."""


class Pushes:
    """Pushes within a `with` block, and once more at its end.

    receiver: with scheme and whole path. node: name of this machine. period_s: None: as the environment says.
    failed, last_error: how many pushes were not taken, and why the last one was not, "" if it was.

    Raises:
        PushError: what the environment says of pushing cannot be used.
    """

    def __init__(
        self,
        receiver: Endpoint,
        registry: Registry,
        *,
        node: str,
        environ: Mapping[str, str] = os.environ,
        period_s: float | None = None,
    ) -> None:
        self._receiver, self._registry, self._node = receiver, registry, node
        self._settings = settings = push_settings(environ)
        self._period_s = settings.period_s if period_s is None else period_s
        self._headers = {**settings.headers, "Content-Type": settings.protocol.content_type}
        if settings.is_compressed:
            self._headers["Content-Encoding"] = "gzip"
        self._deltas = Deltas(registry.began_ns) if settings.is_delta else None
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
        if self._receiver.address.port == _GRPC_PORT:
            reason += "; port 4317 usually takes OTLP over gRPC, which is not supported; over HTTP it is 4318"
        if not self.last_error:
            logger.warning("OTLP: %s does not take metrics: %s", self._receiver, reason)
        self.last_error = reason
        self.failed += 1
        self._registry.add(catalogue.FAILED_PUSHES, 1)

    def _send(self) -> None:
        now_ns = time.time_ns()
        connection = self._connection()
        try:
            connection.request("POST", self._receiver.path, self._body(now_ns), self._headers)
            answer = connection.getresponse()
            body = answer.read(_MAX_ANSWERED_BYTES)
        finally:
            connection.close()
        if answer.status != 200:
            raise RefusedError(f"HTTP status {answer.status} {answer.reason} at {self._receiver.path}")
        if self._deltas:
            self._deltas.taken(now_ns)  # what of it was refused is not sent again
        _check_taken(body, self._settings.protocol)

    def _body(self, now_ns: int) -> bytes:
        settings, registry, deltas = self._settings, self._registry, self._deltas
        families = registry.read()
        request = as_request(
            deltas.of(families) if deltas else families,
            node=self._node,
            began_ns=deltas.since_ns if deltas else registry.began_ns,
            now_ns=now_ns,
            is_explicit=settings.is_explicit,
            is_delta=settings.is_delta,
            attributes=settings.attributes,
        )
        body = as_json(request) if settings.protocol is Protocol.JSON else request.SerializeToString()
        return gzip.compress(body, mtime=0) if settings.is_compressed else body

    def _connection(self) -> HTTPConnection:
        address, timeout_s = self._receiver.address, self._settings.timeout_s
        if self._receiver.is_plain:
            return HTTPConnection(address.host, address.port, timeout=timeout_s)
        return HTTPSConnection(address.host, address.port, timeout=timeout_s, context=self._settings.tls)

    def __enter__(self) -> Pushes:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join(2 * self._settings.timeout_s)


def _check_taken(body: bytes, protocol: Protocol) -> None:
    answer = ExportMetricsServiceResponse()
    try:
        if protocol is Protocol.JSON:
            Parse(body, answer, ignore_unknown_fields=True)
        else:
            answer.ParseFromString(body)
    except (DecodeError, ParseError):
        return  # it said 200; some receivers answer with a text
    refused = answer.partial_success.rejected_data_points
    if refused:
        raise RefusedError(f"{refused} values were refused: {answer.partial_success.error_message[:200]}")
