"""Whether a newer version is there: nobody is asked by default, nothing is told, and no answer is believed."""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import pytest

from ingero import __version__
from ingero.cli.main import main
from ingero.cli.update import notice as update_notice
from ingero.cli.update import source as update_source
from ingero.cli.update.notice import Known, is_interactive, read_known, write_known
from ingero.cli.update.source import UpdateError, is_newer, newest_version, refuse_url
from tests.unit.run_ingero import Answer, run_ingero

Run = Callable[..., Answer]
Serve = Callable[..., str]
NEWER = json.dumps({"tag_name": "v99.1.2", "body": "notes"}).encode()


class Terminal(io.StringIO):
    """A stream that somebody reads."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs `ingero ARGUMENTS` with a configuration of its own."""
    (tmp_path / "ingero.yaml").touch()
    monkeypatch.setenv("INGERO_CONFIG", str(tmp_path / "ingero.yaml"))
    return partial(run_ingero, monkeypatch, capsys)


@pytest.fixture
def asked() -> list[tuple[str, dict[str, str]]]:
    """Paths and headers of the requests that the server got."""
    return []


@pytest.fixture
def serve(asked: list[tuple[str, dict[str, str]]]) -> Iterator[Serve]:
    """Starts a server that answers; returns its address."""
    with contextlib.ExitStack() as running:

        def start(
            body: bytes = NEWER, status: int = 200, location: str = "", context: ssl.SSLContext | None = None
        ) -> str:
            class Handler(http.server.BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    asked.append((self.path, dict(self.headers)))
                    self.send_response(status)
                    if location:
                        self.send_header("Location", location)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    with contextlib.suppress(OSError):  # who has read enough goes
                        self.wfile.write(body)

                def log_message(self, *_: object) -> None:
                    pass

            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            server.daemon_threads = True
            if context is not None:
                server.socket = context.wrap_socket(server.socket, server_side=True)
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            running.callback(server.server_close)
            running.callback(thread.join)
            running.callback(server.shutdown)
            return f"{'https' if context else 'http'}://127.0.0.1:{server.server_address[1]}/latest"

        yield start


def test_the_newest_version_is_that_of_the_answer(serve: Serve) -> None:
    assert newest_version(serve()) == "99.1.2"


def test_nothing_is_sent_that_tells_who_asks(serve: Serve, asked: list[tuple[str, dict[str, str]]]) -> None:
    newest_version(serve())
    [(path, headers)] = asked
    assert path == "/latest"
    assert {name.lower() for name in headers} == {"host", "connection", "accept", "accept-encoding", "user-agent"}
    assert headers["User-Agent"] == "ingero"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"{}", b'{"tag_name": 7}', b'{"tag_name": "v2"}', b'{"tag_name": "1.0.0; rm -rf /"}',
     b'{"tag_name": "\\u001b[2J1.0.0"}', b'{"tag_name": "' + b"9" * 5000 + b'.1"}', b"[" * 100_000, b"\xff\xfe\x00",
     b'{"tag_name": "1.0.0rc1"}'],
)  # fmt: skip
def test_an_answer_that_names_no_version_is_none(body: bytes, serve: Serve) -> None:
    with pytest.raises(UpdateError, match="contains no version"):
        newest_version(serve(body))


def test_a_long_answer_is_not_read_to_its_end(serve: Serve) -> None:
    with pytest.raises(UpdateError, match="larger than 1 MiB"):
        newest_version(serve(b" " * (update_source.MAX_BYTES + 1)))


@pytest.mark.parametrize("status", [204, 404, 429, 500])
def test_another_answer_than_200_is_an_error(status: int, serve: Serve) -> None:
    with pytest.raises(UpdateError, match="cannot ask"):
        newest_version(serve(b"", status))


def test_nobody_there_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(UpdateError, match="cannot ask"):
        newest_version(f"http://127.0.0.1:{port}/")


def test_a_server_that_drips_is_given_up_in_time() -> None:
    """A byte each 50 ms: no single read waits for long, all of them would wait for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()

        def drip() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not ended.wait(0.05):
                    connection.sendall(b"a")

        thread = threading.Thread(target=drip)
        thread.start()
        begin_s = time.monotonic()
        with pytest.raises(UpdateError, match="no answer within"):
            newest_version(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout_s=0.5)
        took_s = time.monotonic() - begin_s
        ended.set()
        thread.join()
    assert took_s < 3


def test_redirections_are_followed_a_few_times_and_never_to_another_kind_of_address(serve: Serve) -> None:
    assert newest_version(serve(b"", 302, location=serve())) == "99.1.2"
    with pytest.raises(UpdateError, match="not allowed"):
        newest_version(serve(b"", 302, location="file:///etc/passwd"))
    with pytest.raises(UpdateError, match="https"):
        newest_version(serve(b"", 302, location="http://example.org/"))


def test_a_server_that_sends_in_circles_is_given_up(serve: Serve) -> None:
    with pytest.raises(UpdateError, match="cannot ask"):
        newest_version(serve(b"", 302, location="/latest"))


def test_a_certificate_that_nobody_trusts_is_refused_and_one_that_is_trusted_taken(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ingero.serve.http.tls import self_signed  # noqa: PLC0415  # needs cryptography

    made = self_signed(("127.0.0.1",), now=datetime.now(timezone.utc))
    (tmp_path / "both.pem").write_bytes(made.key + made.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "both.pem")
    url = serve(context=context)
    with pytest.raises(UpdateError, match="certificate"):
        newest_version(url)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "both.pem"))
    assert newest_version(url) == "99.1.2"


@pytest.mark.parametrize(
    "url",
    ["http://example.org/", "file:///etc/passwd", "ftp://example.org/", "https://", "https://me:secret@example.org/",
     "x", "https://example.org:99999/", "https://exa mple.org/", "https://example.org/\n"],
)  # fmt: skip
def test_an_address_that_is_not_safe_is_refused_and_its_password_not_shown(url: str) -> None:
    with pytest.raises(UpdateError) as caught:
        refuse_url(url)
    assert "secret" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize(
    ("version", "than", "answer"),
    [("0.2.0", "0.1.0", True), ("0.1.0", "0.1.0", False), ("0.1", "0.1.0", False), ("0.1.0.1", "0.1", True),
     ("0.10.0", "0.9.9", True), ("", "0.1.0", False), ("0.2.0rc1", "0.1.0", False), ("1.0.0", "dev", False)],
)  # fmt: skip
def test_versions_are_compared_by_their_numbers(version: str, than: str, answer: bool) -> None:
    assert is_newer(version, than) is answer


def test_version_alone_asks_nobody(
    run: Run, serve: Serve, asked: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGERO_UPDATE_URL", serve())
    assert run("version")[0] == 0
    assert asked == []


def test_version_check_says_what_is_newer(run: Run, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGERO_UPDATE_URL", serve())
    code, out, _ = run("version", "--check")
    assert (code, "99.1.2 is newer" in out) == (1, True)
    monkeypatch.setenv("INGERO_UPDATE_URL", serve(json.dumps({"tag_name": f"v{__version__}"}).encode()))
    code, out, _ = run("version", "--check")
    assert (code, f"the newest release is {__version__}" in out) == (0, True)


def test_version_check_that_gets_no_answer_is_an_error_with_a_way_out(
    run: Run, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGERO_UPDATE_URL", serve(b"", 500))
    code, _, err = run("version", "--check")
    assert (code, "hint: " in err) == (2, True)


@pytest.mark.parametrize(
    ("environ", "terminals", "answer"),
    [({}, 3, True), ({}, 2, False), ({"CI": "true"}, 3, False), ({"CI": "false"}, 3, True), ({"CI": ""}, 3, True),
     ({"INGERO_NO_UPDATE_NOTIFIER": "1"}, 3, False), ({"NOTIFY_SOCKET": "/run/x"}, 3, False)],
)  # fmt: skip
def test_only_somebody_at_a_terminal_is_told(environ: dict[str, str], terminals: int, answer: bool) -> None:
    streams = (*(Terminal() for _ in range(terminals)), *(io.StringIO() for _ in range(3 - terminals)))
    assert is_interactive(environ, streams) is answer


def test_a_closed_stream_is_no_terminal() -> None:
    closed = Terminal()
    closed.close()
    assert not is_interactive({}, (closed, io.StringIO()))
    assert not is_interactive({}, (None,))  # type: ignore[arg-type]  # as Python has it without a descriptor


class Typed:
    """Somebody at a terminal, with a home and a configuration of their own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, monkeypatch
        self.started: list[subprocess.Popen[bytes]] = []

    def __call__(self, file: str, *, environ: dict[str, str] | None = None, is_waiting: bool = True) -> str:
        """Types `ingero version`; returns what standard error got. is_waiting: for what was started, too."""
        (self._folder / "ingero.yaml").write_text(file)
        streams = Terminal(), Terminal(), Terminal()
        with self._patch.context() as patch:
            for name, text in (environ or {}).items():
                patch.setenv(name, text)
            for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
                patch.setattr(sys, name, stream)
            patch.setattr(sys, "argv", ["ingero", "version"])
            main()
        for process in self.started if is_waiting else ():
            process.wait(30)
        return streams[2].getvalue()


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Typed]:
    """Runs a command as somebody types it."""
    home = tmp_path / "home"
    home.mkdir()
    owner = update_notice.Owner(uid=os.getuid(), gid=os.getgid(), home=home)
    monkeypatch.setattr(update_notice, "invoking_user", lambda *_, **__: owner)
    monkeypatch.setenv("INGERO_CONFIG", str(tmp_path / "ingero.yaml"))
    for name in ("PYTHONPATH", "CI", "NOTIFY_SOCKET", update_notice.SILENCE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    typed = Typed(tmp_path, monkeypatch)
    ask = update_notice.ask_in_background

    def remembered(url: str, path: Path, owner: update_notice.Owner) -> subprocess.Popen[bytes]:
        typed.started.append(ask(url, path, owner))
        return typed.started[-1]

    monkeypatch.setattr(update_notice, "ask_in_background", remembered)
    yield typed
    for process in typed.started:
        process.kill()
        process.wait(30)


def state_file(tmp_path: Path) -> Path:
    return tmp_path / "home/.ingero" / update_notice.FILE_NAME


def test_by_default_nobody_is_asked_and_nothing_kept(at_a_terminal: Typed, tmp_path: Path) -> None:
    assert at_a_terminal("") == ""
    assert list((tmp_path / "home").iterdir()) == []


def test_a_notice_comes_after_the_command_after_the_one_that_asked(
    at_a_terminal: Typed, serve: Serve, asked: list[object], tmp_path: Path
) -> None:
    file = f"update_check: true\nupdate-url: {serve()}\n"
    assert at_a_terminal(file) == ""
    assert read_known(state_file(tmp_path)).version == "99.1.2"
    assert f"ingero 99.1.2 is there, this is {__version__}" in at_a_terminal(file)
    assert len(asked) == 1  # once a day


def test_a_fault_is_no_fault_of_the_command_and_not_asked_again_at_once(
    at_a_terminal: Typed, serve: Serve, asked: list[object]
) -> None:
    file = f"update-check: true\nupdate-url: {serve(b'', 500)}\n"
    assert [at_a_terminal(file), at_a_terminal(file)] == ["", ""]
    assert len(asked) == 1
    assert at_a_terminal("update-check: perhaps\n") == ""


@pytest.mark.parametrize("environ", [{"CI": "1"}, {"INGERO_NO_UPDATE_NOTIFIER": "1"}, {"NOTIFY_SOCKET": "@x"}])
def test_services_pipelines_and_whoever_wants_silence_ask_nobody(
    environ: dict[str, str], at_a_terminal: Typed, serve: Serve, asked: list[object], tmp_path: Path
) -> None:
    file = f"update-check: true\nupdate-url: {serve()}\n"
    assert at_a_terminal(file, environ=environ) == ""
    assert (asked, state_file(tmp_path).exists()) == ([], False)


def test_a_command_does_not_wait_for_the_answer(at_a_terminal: Typed) -> None:
    """The server accepts and says nothing: the process that asks is still there when the command has ended."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        assert at_a_terminal(f"update-check: true\nupdate-url: {url}\n", is_waiting=False) == ""
        [process] = at_a_terminal.started
        assert process.poll() is None


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b'{"asked_s": "x", "version": "1.0"}', b'{"asked_s": 1, "version": "\\u001b[31m9.9"}',
     b"[" * 9999, b'{"asked_s": 1e999, "version": 3}', b'{"asked_s": 1}', b"\xff" * 9999],
)  # fmt: skip
def test_what_somebody_put_into_the_file_is_not_believed(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(text)
    assert read_known(tmp_path / "file").version == ""


def test_links_pipes_and_folders_are_no_file(tmp_path: Path) -> None:
    write_known(tmp_path / "real", Known(1.0, "9.9.9"))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    assert read_known(tmp_path / "real") == Known(1.0, "9.9.9")
    assert [read_known(tmp_path / name) for name in ("link", "pipe", "folder", "absent")] == [Known()] * 4


def test_a_day_is_counted_also_where_the_clock_was_put_back() -> None:
    assert not Known(asked_s=1000.0).is_due(1000.0 + 86_399)
    assert Known(asked_s=1000.0).is_due(1000.0 + 86_400)
    assert Known(asked_s=1000.0).is_due(999.0)


def test_root_asks_as_whoever_called_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    uid, gid = (65534, 65534) if os.geteuid() == 0 else (os.getuid(), os.getgid())
    home = Path(tempfile.mkdtemp(prefix="ingero-update-"))  # a folder that others reach, as those of tests are not
    try:
        program = home / "python"  # that of the tests may be nobody else's to run
        program.write_text('#!/bin/sh\n(id -u; id -G; pwd; echo "$1 $4") > "$5"\n')
        program.chmod(0o755)
        os.chown(home, uid, gid)
        monkeypatch.setattr(sys, "executable", str(program))
        owner = update_notice.Owner(uid=uid, gid=gid, home=home)
        update_notice.ask_in_background("http://127.0.0.1:1/", home / "told", owner).wait(30)
        told = (home / "told").read_text().splitlines()
        assert told[0] == str(uid)
        assert os.geteuid() != 0 or told[1] == str(gid)
        assert told[2:] == ["/", "-c http://127.0.0.1:1/"]
    finally:
        shutil.rmtree(home)
