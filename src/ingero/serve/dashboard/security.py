"""Checks before every request of the dashboard: host name, token, headers (ASGI)."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response

from ingero.serve.dashboard.errors import error_response

Message: TypeAlias = MutableMapping[str, Any]  # ASGI's own types
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

COOKIE = "ingero_session"
LOGIN_PATH = "/login"
_OPEN_PATHS = ("/assets/",)  # the page's own code and styles, which hold nothing of the recording
_MAX_BODY_BYTES = 256 << 10
_COOKIE_SECONDS = 12 * 3600

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",  # with no-referrer, browsers send our own form with `Origin: null`
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Sessions:
    """Clients that have shown the token. A cookie holds a value known only to this server, never the token."""

    def __init__(self, token: str, *, is_secure: bool) -> None:
        self.has_token = bool(token)
        self._token = token.encode()
        self._is_secure = is_secure
        self._session = secrets.token_urlsafe(32)

    def is_token(self, text: str) -> bool:
        """Whether a text is the token, in constant time."""
        given, known = (hashlib.sha256(value).digest() for value in (text.encode("utf-8", "replace"), self._token))
        return self.has_token and hmac.compare_digest(given, known)

    def is_known(self, headers: Headers) -> bool:
        """Whether a request shows the token, or the cookie that was given for it."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.is_token(given.strip())
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self._session.encode())

    def remember(self, response: Response) -> None:
        """Set the session cookie in a response."""
        response.set_cookie(
            COOKIE,
            self._session,
            max_age=_COOKIE_SECONDS,
            httponly=True,
            samesite="strict",
            secure=self._is_secure,
        )


class Gate:
    """Admits requests that use one of this server's names and, if there is a token, show it."""

    def __init__(self, app: App, *, hosts: Collection[str], sessions: Sessions) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}
        self._sessions = sessions

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle an ASGI request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, self._with_headers(scope["path"], send))

    def _refusal(self, scope: Message) -> Response | None:
        headers = Headers(scope=scope)
        if not self._is_own_name(scope, headers.get("host", "")):
            return error_response(
                421, "wrong_host", "this server does not answer to that name", "--host NAME lets it answer to NAME"
            )
        origin = headers.get("origin")
        if origin and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
            return error_response(403, "wrong_origin", "pages of other sites may not ask this server", "")
        if scope["method"] not in {"GET", "HEAD"} and not _is_small(headers):
            return error_response(413, "too_large", f"a body may have {_MAX_BODY_BYTES >> 10} KiB and must say so", "")
        return None if self._may_read(scope["path"], headers) else _unknown(scope)

    def _may_read(self, path: str, headers: Headers) -> bool:
        is_open = not self._sessions.has_token or path == LOGIN_PATH or path.startswith(_OPEN_PATHS)
        return is_open or self._sessions.is_known(headers)

    def _is_own_name(self, scope: Message, host: str) -> bool:
        """Whether a host is this server's: names are compared with known ones, addresses with the connection's.

        A page elsewhere can make its own name lead to this machine (DNS rebinding), but not an address.
        """
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        server = scope.get("server")
        below = f"*.{name.partition('.')[2]}"  # as a certificate names all hosts of a domain
        return bool({name, below} & self._hosts) or (server is not None and name == str(server[0]).lower())

    @staticmethod
    def _with_headers(path: str, send: Send) -> Send:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-cache" if path.startswith(_OPEN_PATHS) else "no-store")
            await send(message)

        return sent


def _unknown(scope: Message) -> Response:
    """The response without the token: the form for browsers, an error for programs."""
    path = scope["path"]
    if scope["method"] == "GET" and not path.startswith("/api/") and path != "/openapi.json":
        return RedirectResponse(LOGIN_PATH, status_code=303)
    refusal = error_response(401, "no_token", "a token is needed", "send Authorization: Bearer TOKEN")
    refusal.headers["www-authenticate"] = "Bearer"
    return refusal


def _is_small(headers: Headers) -> bool:
    """Whether a body ends soon; one in chunks may not."""
    length = headers.get("content-length", "0")
    return "transfer-encoding" not in headers and length.isdecimal() and int(length) <= _MAX_BODY_BYTES
