"""Where metrics are pushed to: addresses and URLs, OpenTelemetry's variables, and what goes without TLS."""

from __future__ import annotations

import socket

import pytest

from ingero.serve.http.addresses import is_this_machine
from ingero.serve.otlp_endpoint import (
    ENDPOINT_VARIABLE,
    METRICS_ENDPOINT_VARIABLE,
    PushError,
    endpoint_of,
    parse_endpoint,
    secured,
)


def pushed_to(text: str = "", *, is_insecure: bool = False, **environ: str) -> str:
    found = endpoint_of(parse_endpoint(text) if text else None, environ)
    assert found
    return str(secured(found, is_insecure=is_insecure))


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("collector:4318", "https://collector:4318/v1/metrics"),
        ("collector:4318/", "https://collector:4318/v1/metrics"),
        ("collector:4318/api/v1/otlp", "https://collector:4318/api/v1/otlp/v1/metrics"),
        ("https://otlp.example/otlp/", "https://otlp.example:443/otlp/v1/metrics"),
        ("https://otlp.example/api/v1/otlp/v1/metrics", "https://otlp.example:443/api/v1/otlp/v1/metrics"),
        ("HTTPS://otlp.example/x?tenant=7", "https://otlp.example:443/x/v1/metrics"),
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/metrics"),
        (":4318", "https://127.0.0.1:4318/v1/metrics"),
        ("[::1]:4318", "https://[::1]:4318/v1/metrics"),
    ],
)
def test_the_option_is_a_base_whose_path_is_kept(text: str, url: str) -> None:
    assert pushed_to(text) == url


def test_what_is_behind_a_question_mark_is_sent_and_not_shown() -> None:
    found = endpoint_of(parse_endpoint("https://otlp.example/x?token=7"), {})
    assert found
    assert found.path == "/x/v1/metrics?token=7"
    assert "token" not in str(found)


@pytest.mark.parametrize(
    ("base", "url"),
    [
        # "exporter.md", Endpoint URLs for OTLP/HTTP: relative to the path, also where it looks like a whole one
        ("https://collector:4318", "https://collector:4318/v1/metrics"),
        ("https://collector:4318/mycollector/", "https://collector:4318/mycollector/v1/metrics"),
        ("https://collector:4318/v1/metrics", "https://collector:4318/v1/metrics/v1/metrics"),
    ],
)
def test_the_variable_of_all_signals_is_a_base(base: str, url: str) -> None:
    assert pushed_to(**{ENDPOINT_VARIABLE: base}) == url


@pytest.mark.parametrize(
    ("whole", "url"),
    [
        ("https://collector:4318/api/v1/otlp/v1/metrics", "https://collector:4318/api/v1/otlp/v1/metrics"),
        ("https://collector:4318/mine", "https://collector:4318/mine"),
        ("https://collector:4318", "https://collector:4318/"),
    ],
)
def test_the_variable_of_metrics_is_taken_as_it_is_and_wins_over_that_of_all(whole: str, url: str) -> None:
    both = {METRICS_ENDPOINT_VARIABLE: whole, ENDPOINT_VARIABLE: "https://other:4318"}
    assert pushed_to(**both) == url


def test_the_option_wins_over_the_environment() -> None:
    environ = {METRICS_ENDPOINT_VARIABLE: "https://other:4318/x", ENDPOINT_VARIABLE: "https://other:4318"}
    assert pushed_to("collector:4318", **environ) == "https://collector:4318/v1/metrics"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {ENDPOINT_VARIABLE: ""},
        {ENDPOINT_VARIABLE: "https://c:4318", "OTEL_METRICS_EXPORTER": "none"},
        {ENDPOINT_VARIABLE: "https://c:4318", "OTEL_SDK_DISABLED": "TRUE"},
    ],
)
def test_nobody_is_pushed_to_where_nobody_is_named(environ: dict[str, str]) -> None:
    assert endpoint_of(None, environ) is None


@pytest.mark.parametrize(
    "text",
    [
        "collector",
        "grpc://collector:4317",
        "http://",
        "collector:0",
        "collector:99999",
        "a b:1",
        "http://u:p@h:1",
        "h:1/\n",
    ],
)
def test_what_is_no_receiver_is_refused(text: str) -> None:
    with pytest.raises(PushError):
        parse_endpoint(text)


def own_address() -> str | None:
    """Of an interface of this machine, where it has one that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def test_own_addresses_are_this_machine() -> None:
    assert is_this_machine("localhost")
    assert is_this_machine("127.0.0.1")
    assert is_this_machine("::1")
    assert not is_this_machine("192.0.2.1")
    assert not is_this_machine("no-such-name.invalid")
    own = own_address()
    if own is not None:
        assert is_this_machine(own)
        assert pushed_to(f"{own}:4318", is_insecure=True) == f"http://{own}:4318/v1/metrics"


def test_plain_http_to_another_machine_has_to_be_insisted_on() -> None:
    for text, is_insecure in (("192.0.2.1:4318", True), ("http://192.0.2.1:4318", False)):
        with pytest.raises(PushError, match="another host") as refused:
            pushed_to(text, is_insecure=is_insecure)
        assert "--otlp http://192.0.2.1:4318 --otlp-insecure" in refused.value.hint
    assert pushed_to("http://192.0.2.1:4318/x", is_insecure=True) == "http://192.0.2.1:4318/x/v1/metrics"


def test_a_url_with_tls_and_the_wish_to_do_without_contradict_each_other() -> None:
    with pytest.raises(PushError, match="contradict"):
        pushed_to("https://127.0.0.1:4318", is_insecure=True)
