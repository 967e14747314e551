"""MCP over HTTPS: TLS 1.3, a bearer token, and only requests that name this server."""

from __future__ import annotations

import socket
import ssl

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings

from ingero.errors import IngeroError
from ingero.program import command
from ingero.serve.http.addresses import Address
from ingero.serve.http.bearer import with_bearer
from ingero.serve.http.limits import limits
from ingero.serve.mcp.server import IngeroServer

TOKEN_VARIABLE = "INGERO_MCP_TOKEN"
MIN_TOKEN_CHARACTERS = 16  # 64 bits as hexadecimal digits; below it, guessing over a network is conceivable
PATH = "/mcp"
_HTTPS = 443  # clients leave it out


class TokenError(IngeroError):
    """There is no token, or it is too easy to guess."""


def check_token(token: str, address: Address) -> None:
    """Whether a server may listen there with this token ("": none).

    Raises:
        TokenError: others could ask it.
    """
    again = command("mcp", "--http", f"{address.host}:{address.port}")
    way_out = f"{TOKEN_VARIABLE}=$(openssl rand -hex 32) {again}"
    if not token and not address.is_loopback:
        raise TokenError(f"{address.host} can be reached from other hosts, and there is no token", hint=way_out)
    if token and (len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable()):
        raise TokenError(f"the token needs at least {MIN_TOKEN_CHARACTERS} printable ASCII characters", hint=way_out)


def serve(
    server: IngeroServer, listening: socket.socket, address: Address, context: ssl.SSLContext, token: str
) -> None:
    """Answers until it is interrupted."""
    port = listening.getsockname()[1]
    hosts = [f"[{name}]" if ":" in name else name for name in address.names]
    named = [f"{host}:{port}" for host in hosts] + (hosts if port == _HTTPS else [])
    security = TransportSecuritySettings(allowed_hosts=named, allowed_origins=[f"https://{host}" for host in named])
    app = server.streamable_http_app(streamable_http_path=PATH, transport_security=security, host=address.host)
    config = uvicorn.Config(
        with_bearer(app, token) if token else app,
        ssl_context_factory=lambda _config, _default: context,
        log_level="warning",
        server_header=False,
        ws="none",
        **limits(),
        timeout_graceful_shutdown=3,  # an open stream would keep it for ever
    )
    uvicorn.Server(config).run(sockets=[listening])
