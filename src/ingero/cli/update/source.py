"""Asks for the newest version. The answer is not trusted: it is bounded in bytes and time, and only a version is read.

The request carries no version, host name or id.
"""

from __future__ import annotations

import json
import re
import threading
from typing import IO
from urllib.parse import urlsplit

from ingero.errors import IngeroError

DEFAULT_URL = "https://api.github.com/repos/ingero-io/ingero/releases/latest"
TIMEOUT_S = 5.0  # for name lookup, connection, redirections and answer together
MAX_BYTES = 1 << 20  # a release's notes and the list of its files are some 100 kB
_MAX_REDIRECTIONS = 3
_VERSION = re.compile(r"v?(\d{1,6}(?:\.\d{1,6}){1,3})")
_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "ingero"}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class UpdateError(IngeroError):
    """The newest version cannot be determined."""


def refuse_url(url: str) -> None:
    """Accepts only HTTPS, or plain HTTP to this host, without a password.

    Raises:
        UpdateError: the URL is not accepted.
    """
    hint = "write it like https://mirror.example/ingero/latest.json"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise UpdateError("it is not a web address", hint=hint) from None
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)):
        raise UpdateError("it must be an https:// address", hint=hint)
    if parts.username is not None or parts.password is not None:
        raise UpdateError("an address must not contain a password", hint=hint)
    if not url.isascii() or not url.isprintable() or " " in url:
        raise UpdateError("it has characters that are not allowed in an address", hint=hint)


def newest_version(url: str, *, timeout_s: float = TIMEOUT_S) -> str:
    """The version of the newest release, such as `1.2.0`, as `tag_name` of the answer says.

    Raises:
        UpdateError: nobody answers in time, or the answer is none.
    """
    refuse_url(url)
    answers: list[bytes | Exception] = []

    def ask() -> None:
        try:
            answers.append(_fetch(url, timeout_s))
        except Exception as error:  # whatever a server makes the libraries raise
            answers.append(error)

    # A thread of its own: timeouts of sockets are those of one read, and a server may send a byte a second.
    thread = threading.Thread(target=ask, name="ingero-update", daemon=True)
    thread.start()
    thread.join(timeout_s)
    hint = f"open {url} yourself"
    if not answers:
        raise UpdateError(f"no answer within {timeout_s:g} s", hint=hint)
    if isinstance(answers[0], Exception):
        raise UpdateError(f"cannot ask: {_reason(answers[0])}", hint=hint)
    return _version_in(answers[0], hint)


def parts_of(version: str) -> tuple[int, ...] | None:
    """The numbers of a version; None where it is none, or one before a release."""
    found = _VERSION.fullmatch(version)
    return tuple(map(int, found[1].split("."))) if found else None


def is_newer(version: str, than: str) -> bool:
    """Whether a version comes after another; of what is no version, no."""
    one, other = parts_of(version), parts_of(than)
    if one is None or other is None:
        return False
    length = max(len(one), len(other))
    return one + (0,) * (length - len(one)) > other + (0,) * (length - len(other))


def _fetch(url: str, timeout_s: float) -> bytes:
    import ssl  # noqa: PLC0415  # with what follows 60 ms, and most commands never ask
    from http.client import HTTPMessage  # noqa: PLC0415
    from urllib.error import HTTPError  # noqa: PLC0415
    from urllib.request import (  # noqa: PLC0415
        HTTPDefaultErrorHandler,
        HTTPErrorProcessor,
        HTTPHandler,
        HTTPRedirectHandler,
        HTTPSHandler,
        OpenerDirector,
        ProxyHandler,
        Request,
    )

    class _Redirections(HTTPRedirectHandler):
        max_redirections = _MAX_REDIRECTIONS

        def redirect_request(
            self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
        ) -> Request | None:
            try:
                refuse_url(newurl)
                if url.startswith("https:") and not newurl.startswith("https:"):
                    raise UpdateError("it leads away from HTTPS")
            except UpdateError:
                fp.close()
                raise
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    opener = OpenerDirector()  # the usual one also opens files and FTP
    https = HTTPSHandler(context=ssl.create_default_context())
    of_errors = HTTPErrorProcessor(), HTTPDefaultErrorHandler(), _Redirections()
    for handler in (ProxyHandler(), HTTPHandler(), https, *of_errors):
        opener.add_handler(handler)
    request = Request(url, headers=_HEADERS)
    try:
        answer = opener.open(request, timeout=timeout_s)
    except HTTPError as error:
        error.close()
        raise
    if answer is None:
        raise UpdateError("nobody there")
    with answer:
        if answer.status != 200:
            raise UpdateError(f"it answers {answer.status}")
        body: bytes = answer.read(MAX_BYTES + 1)
    if len(body) > MAX_BYTES:
        raise UpdateError("the answer is larger than 1 MiB")
    return body


def _version_in(body: bytes, hint: str) -> str:
    try:
        answer = json.loads(body)
        name = answer.get("tag_name") if isinstance(answer, dict) else None
    except (ValueError, RecursionError):
        name = None
    found = _VERSION.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        raise UpdateError("the answer contains no version", hint=hint)
    return found[1]


def _reason(error: Exception) -> str:
    """Of libraries' errors, a line of bounded length."""
    reason = getattr(error, "reason", None) or error
    return " ".join(str(reason).split())[:200] or type(error).__name__
