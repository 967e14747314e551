"""Bearer token authentication (ASGI)."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Message: TypeAlias = MutableMapping[str, Any]  # ASGI's own type
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

_BODY = b"a bearer token is needed\n"


def with_bearer(app: App, token: str) -> App:
    """The application for those who send `Authorization: Bearer <token>`; others get 401 and reach nothing of it."""
    expected = f"Bearer {token}".encode()

    async def guarded(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or hmac.compare_digest(_authorization(scope), expected):
            await app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": _BODY})
        else:
            await send({"type": "websocket.close", "code": 1008})

    return guarded


def _authorization(scope: Message) -> bytes:
    """The header; empty where it is missing or appears twice."""
    found = [bytes(value) for name, value in scope.get("headers", ()) if name.lower() == b"authorization"]
    return found[0] if len(found) == 1 else b""
