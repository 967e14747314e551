"""The OTLP receiver that metrics are pushed to, from `--otlp` and OpenTelemetry's variables by its specification.

Source: https://opentelemetry.io/docs/specs/otel/protocol/exporter/ and .../configuration/sdk-environment-variables/.
A variable that is set to "" is not set; the one that ends in METRICS_... wins over the general one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import unquote, urlsplit

from ingero.errors import IngeroError
from ingero.serve.http.addresses import Address, is_this_machine

PATH = "v1/metrics"
ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
METRICS_ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
_EXPORTER_VARIABLE = "OTEL_METRICS_EXPORTER"  # none: whatever else is set
_DISABLED_VARIABLE = "OTEL_SDK_DISABLED"
_PORTS = {"http": 80, "https": 443}


class PushError(IngeroError):
    """A setting needed to reach the receiver is missing, or cannot or must not be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A receiver of metrics. scheme: "" if not given. path: with its query, from "/" on. origin: the variable used."""

    address: Address
    scheme: str = ""
    path: str = ""
    origin: str = "--otlp"

    def __str__(self) -> str:
        """The receiver without its query, which may hold tokens."""
        scheme = f"{self.scheme}://" if self.scheme else ""
        return f"{scheme}{self.address}{self.path.partition('?')[0]}"

    @property
    def is_plain(self) -> bool:
        """Whether it is reached without TLS."""
        return self.scheme == "http"


def parse_endpoint(text: str, *, origin: str = "") -> Endpoint:
    """`collector:4318`, `collector:4318/otlp`, `https://otlp.example/path`: a base, the path is kept.

    origin: the variable that says it; "": `--otlp`.

    Raises:
        PushError: it is none of these.
    """
    refused = PushError(
        f"{origin and f'{origin}: '}{text!r} is not a receiver",
        hint="write it like collector:4318, collector:4318/path or https://otlp.example/path",
    )
    if text.startswith(":") or text.isdecimal():  # a port of this machine
        text = f"127.0.0.1:{text.removeprefix(':')}"
    is_url = "://" in text
    scheme = text.partition("://")[0].lower() if is_url else ""
    if (is_url and scheme not in _PORTS) or not (text.isascii() and text.isprintable()) or " " in text:
        raise refused
    try:
        url = urlsplit(text if is_url else f"//{text}")
        port = url.port if url.port is not None else _PORTS.get(scheme, 0)
    except ValueError:
        raise refused from None
    if not url.hostname or not port:
        raise refused
    if url.username is not None or url.password is not None:
        raise PushError(
            "a name and a password do not belong in the address of a receiver",
            hint="authenticate with OTEL_EXPORTER_OTLP_HEADERS=Authorization=Basic%20...",
        )
    path = url.path + (f"?{url.query}" if url.query else "")
    return Endpoint(address=Address(url.hostname, port), scheme=scheme, path=path, origin=origin or "--otlp")


def endpoint_of(given: Endpoint | None, environ: Mapping[str, str]) -> Endpoint | None:
    """The receiver with the full path, or None if none is configured. given: value of `--otlp`, which wins.

    `--otlp` and OTEL_EXPORTER_OTLP_ENDPOINT are a base, to which v1/metrics is added (of `--otlp` unless it ends so);
    OTEL_EXPORTER_OTLP_METRICS_ENDPOINT is taken as it is.

    Raises:
        PushError: a variable names none.
    """
    if given is not None:
        return _with_signal(given, keeps_whole=True)
    if environ.get(_EXPORTER_VARIABLE) == "none" or environ.get(_DISABLED_VARIABLE, "").lower() == "true":
        return None
    if whole := environ.get(METRICS_ENDPOINT_VARIABLE):
        found = parse_endpoint(whole, origin=METRICS_ENDPOINT_VARIABLE)
        return replace(found, scheme=found.scheme or "https", path=found.path or "/")
    if base := environ.get(ENDPOINT_VARIABLE):
        found = parse_endpoint(base, origin=ENDPOINT_VARIABLE)
        return _with_signal(replace(found, scheme=found.scheme or "https"), keeps_whole=False)
    return None


def _with_signal(endpoint: Endpoint, *, keeps_whole: bool) -> Endpoint:
    path, mark, query = endpoint.path.partition("?")
    if not (keeps_whole and path.rstrip("/").endswith(f"/{PATH}")):
        path = f"{path.rstrip('/')}/{PATH}"
    return replace(endpoint, path=f"{path}{mark}{query}")


def secured(endpoint: Endpoint, *, is_insecure: bool) -> Endpoint:
    """The receiver with its scheme, if metrics may be sent to it that way. is_insecure: `--otlp-insecure`.

    Without TLS they go to this machine, and to another one only where somebody has written http:// and insists.

    Raises:
        PushError: everyone between could read and change them.
    """
    is_written_out = endpoint.scheme == "http"
    if is_insecure and endpoint.scheme == "https":
        raise PushError(
            f"--otlp-insecure and {endpoint.origin} ({endpoint}) contradict each other", hint="leave one of them out"
        )
    scheme = endpoint.scheme or ("http" if is_insecure else "https")
    host = endpoint.address.host
    if scheme == "http" and not is_this_machine(host) and not (is_insecure and is_written_out):
        insist = f"--otlp {replace(endpoint, scheme='http', path='')} --otlp-insecure"
        raise PushError(
            f"{endpoint.origin}: {host} is another host, and everyone between could read and change metrics",
            hint=f"push with TLS, or to a collector on 127.0.0.1; where nobody is between, as in a cluster's own "
            f"network, insist with {insist}",
        )
    return replace(endpoint, scheme=scheme)


def pairs(text: str, variable: str, what: str) -> dict[str, str]:
    """`name=value,name=value`, values percent-encoded (specification, "Specifying headers via environment variables").

    what: they are.

    Raises:
        PushError: it is no such list.
    """
    found = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, separator, value = part.partition("=")
        name, value = unquote(name.strip()), unquote(value.strip())
        if not (separator and name and name.isascii() and name.isprintable() and value.isprintable()):
            raise PushError(f"{variable} is not a list of {what}", hint="write it like name=value,other=value")
        found[name] = value
    return found
