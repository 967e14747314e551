"""An OTLP receiver of the tests' own, which decodes what comes with OpenTelemetry's messages."""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1 import metrics_pb2

from ingero.serve.http.addresses import Address
from ingero.serve.otlp_endpoint import Endpoint


@dataclass
class Receiver:
    """The received requests, and the status and answer to send."""

    port: int = 0
    status: int = 200
    answer: bytes = b""
    requests: list[tuple[str, dict[str, str], ExportMetricsServiceRequest]] = field(default_factory=list)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(address=Address("127.0.0.1", self.port), scheme="http", path="/v1/metrics")

    def metric(self, name: str) -> metrics_pb2.Metric:
        [resource] = self.requests[-1][2].resource_metrics
        [scope] = resource.scope_metrics
        [found] = [metric for metric in scope.metrics if metric.name == name]
        return found


def decoded(body: bytes, headers: dict[str, str]) -> ExportMetricsServiceRequest:
    """The body, unpacked and decoded as the headers say."""
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    if headers["content-type"] == "application/json":
        return Parse(body, ExportMetricsServiceRequest())
    return ExportMetricsServiceRequest.FromString(body)


@contextmanager
def receiving(context: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.requests.append((self.path, headers, decoded(body, headers)))
            self.send_response(receiver.status)
            self.end_headers()
            self.wfile.write(receiver.answer)

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002

    class Server(HTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None: ...

    with Server(("127.0.0.1", 0), Handler) as server:
        if context:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        receiver.port = server.server_port
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
