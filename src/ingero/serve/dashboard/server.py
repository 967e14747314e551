"""Runs the dashboard with TLS 1.3 and, if required, client certificates, until interrupted."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import TypeAlias

import uvicorn
from fastapi import FastAPI

from ingero.serve.dashboard.app import AddMore, create_app
from ingero.serve.dashboard.exposure import Exposure
from ingero.serve.dashboard.security import Gate, Sessions
from ingero.serve.http.limits import limits
from ingero.serve.http.renewal import renew
from ingero.serve.http.tls import Certificate, CertificateError, read_certificate, self_signed, tls_context
from ingero.serve.recording_source import RecordingSource

MakeApp: TypeAlias = Callable[[Sessions, Callable[[], bool]], FastAPI]
"""An application. is_ending: then streams of events end, too."""


def certificate_of(exposure: Exposure) -> Certificate:
    """The given certificate, else a new one for the names of this server.

    Raises:
        CertificateError: a file cannot be read.
    """
    if exposure.certificate is not None and exposure.key is not None:
        return read_certificate(exposure.certificate, exposure.key)
    names = (*exposure.address.names, *exposure.hosts)
    return self_signed(tuple(dict.fromkeys(names)), now=datetime.now(timezone.utc))


def answering_to(exposure: Exposure, certificate: Certificate) -> Exposure:
    """The exposure with the names of its certificate added: clients check that one of them is the name they
    called."""
    return replace(exposure, hosts=tuple(dict.fromkeys((*exposure.hosts, *certificate.names))))


def server_context(exposure: Exposure, certificate: Certificate) -> ssl.SSLContext:
    """A context with TLS 1.3 only; with client_ca, clients need a certificate signed by it. Given files may be renewed.

    Raises:
        CertificateError: a certificate cannot be used.
    """
    context = _context(exposure, certificate)
    if exposure.certificate is not None and exposure.key is not None:
        renew(context, exposure.certificate, exposure.key, lambda renewed: _context(exposure, renewed))
    return context


def _context(exposure: Exposure, certificate: Certificate) -> ssl.SSLContext:
    context = tls_context(certificate)
    if exposure.client_ca is not None:
        try:
            context.load_verify_locations(exposure.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise CertificateError(
                f"{exposure.client_ca}: {error}", hint="--client-ca needs the PEM file of a certificate authority"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def create_server(
    source: RecordingSource, exposure: Exposure, context: ssl.SSLContext | None, add_more: AddMore = lambda _: None
) -> uvicorn.Server:
    """A server of a recording that is ready to run on a listening socket."""

    def make_app(sessions: Sessions, is_ending: Callable[[], bool]) -> FastAPI:
        return create_app(source, sessions, is_ending, add_more)

    return server_of(make_app, exposure, context)


def server_of(make_app: MakeApp, exposure: Exposure, context: ssl.SSLContext | None) -> uvicorn.Server:
    """A server that is ready to run on a listening socket, behind the gate."""
    sessions = Sessions(exposure.token, is_secure=context is not None)
    server: uvicorn.Server | None = None

    def is_ending() -> bool:
        return server is not None and server.should_exit

    gate = Gate(make_app(sessions, is_ending), hosts=(*exposure.address.names, *exposure.hosts), sessions=sessions)
    config = uvicorn.Config(
        gate,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",
        proxy_headers=False,
        **limits(),
        timeout_graceful_shutdown=3,
    )
    config.load()
    config.ssl = context
    server = uvicorn.Server(config)
    return server


def serve(
    source: RecordingSource,
    exposure: Exposure,
    listening: socket.socket,
    context: ssl.SSLContext | None,
    add_more: AddMore = lambda _: None,
) -> None:
    """Answers until it is interrupted."""
    source.prepare()
    try:
        run_server(create_server(source, exposure, context, add_more), listening)
    finally:
        source.close()


def run_server(server: uvicorn.Server, listening: socket.socket) -> None:
    """Answers until it is interrupted."""
    try:
        server.run(sockets=[listening])
    finally:
        listening.close()
