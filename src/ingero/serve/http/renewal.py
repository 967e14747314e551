"""Renews a server's certificate while it runs: each new client gets the pair that is in the files now."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from ingero.serve.http.tls import Certificate, CertificateError, read_certificate

_CHECK_EVERY_S = 1.0  # shortest time between two checks of the files

_log = logging.getLogger(__name__)


def renew(
    context: ssl.SSLContext,
    certificate: Path,
    key: Path,
    make: Callable[[Certificate], ssl.SSLContext],
    *,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Make a server's context use the pair in the files as it changes; checked when a client connects.

    While a pair is half written, or cannot be used, the last good one stays, and that is logged. make: the context of a
    pair, with the same demands on clients. monotonic: s.
    """
    renewal = _Renewal(certificate, key, make, monotonic)

    def on_hello(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        renewed = renewal.current()
        if renewed is not None:
            connection.context = renewed  # its pair, and its authorities; that clients need a certificate stays

    context.sni_callback = on_hello


class _Renewal:
    """The pair that was read last, once it is another one than at the start."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        make: Callable[[Certificate], ssl.SSLContext],
        monotonic: Callable[[], float],
    ) -> None:
        self._files = (certificate, key)
        self._make = make
        self._monotonic = monotonic
        self._renewed: ssl.SSLContext | None = None
        self._stamp = self._stamp_now()
        self._looked_s = monotonic()

    def current(self) -> ssl.SSLContext | None:
        """None: the pair is that of the start."""
        now_s = self._monotonic()
        if now_s - self._looked_s >= _CHECK_EVERY_S:
            self._looked_s = now_s
            stamp = self._stamp_now()
            if stamp != self._stamp:
                self._stamp = stamp
                self._read()
        return self._renewed

    def _read(self) -> None:
        try:
            self._renewed = self._make(read_certificate(*self._files))
        except CertificateError as error:
            _log.warning("the certificate of before stays: %s", error)

    def _stamp_now(self) -> tuple[object, ...]:
        """A stamp that changes when a file is written or replaced."""
        found: list[object] = []
        for path in self._files:
            try:
                about = path.stat()
            except OSError:
                found.append(None)
            else:
                found += [about.st_ino, about.st_mtime_ns, about.st_size]
        return tuple(found)
