"""Answers scrapes of /metrics in threads of its own, without waiting for slow clients or for too many of them."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from ingero.serve.http.addresses import Address, listen
from ingero.serve.metrics import catalogue
from ingero.serve.metrics.old_names import under_old_names
from ingero.serve.metrics.registry import Registry
from ingero.serve.metrics.text_format import CONTENT_TYPE, as_text

PATH = "/metrics"
_AT_A_TIME = 8
_PATIENCE_S = 5.0  # for a request to come, and for its answer to be taken


class Scrapes:
    """Listens from the beginning, answers within a `with` block. page: makes the current page of metrics.

    Raises:
        AddressError: it cannot listen there.
    """

    def __init__(self, address: Address, registry: Registry, *, with_old_names: bool = False) -> None:
        registry.add(catalogue.REFUSED_SCRAPES, 0)
        names = frozenset(address.names) if address.is_loopback else None
        self._server = _Server(listen(address), registry, names, with_old_names=with_old_names)
        port = int(self._server.server_address[1])
        self.url = f"http://{address.url_host}:{port}{PATH}"
        self.page = self._server.page
        self._thread = threading.Thread(target=self._server.serve_forever, name="ingero-scrapes", daemon=True)

    def __enter__(self) -> Scrapes:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """A server with one thread per scrape, up to a limit. names: host names that clients may use; None: any."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, listening: socket.socket, registry: Registry, names: frozenset[str] | None, *, with_old_names: bool
    ) -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.server_address = listening, listening.getsockname()
        self.registry, self._names, self._with_old_names = registry, names, with_old_names
        self._places = threading.BoundedSemaphore(_AT_A_TIME)

    def is_called(self, host: str) -> bool:
        """Whether a request's host names this server: a web page could make its own name resolve to loopback."""
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        return self._names is None or not name or name.strip("[]") in self._names

    def page(self) -> bytes:
        """The page of metrics."""
        families = self.registry.read()
        return as_text([*families, *(under_old_names(families) if self._with_old_names else ())]).encode()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Accept a connection if the limit allows it, else hang up."""
        if not self._places.acquire(blocking=False):
            self.registry.add(catalogue.REFUSED_SCRAPES, 1)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that hung up."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _PATIENCE_S
    server: _Server

    def do_GET(self) -> None:
        """Answer with the page of metrics."""
        if self.path.partition("?")[0] != PATH:
            self.send_error(404, f"metrics are at {PATH}")
            return
        if not self.server.is_called(self.headers.get("Host", "")):
            self.send_error(403, "this name is not this host's")
            return
        page = self.server.page()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def version_string(self) -> str:
        """The server's name, without versions."""
        return "ingero"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name that http.server gives it
        """Log nothing: there is a scrape every few seconds."""
