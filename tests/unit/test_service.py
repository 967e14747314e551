"""As a service: what systemd is told, what reloading does, and which files `ingero service` writes and removes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from ingero.cli.config.file import read_config
from ingero.cli.config.settings import TraceSettings, resolve
from ingero.cli.service import command as service
from ingero.cli.service.manager import RecordingState, ServiceManager
from ingero.cli.service.units import CAPABILITIES, DASHBOARD, TRACE, ProgramPathError, first_settings, sysusers, units
from ingero.cli.trace.recording import _ReceivedSignals, _Reload, _signals
from ingero.cli.trace.view import open_view
from ingero.diagnose.findings import Incident
from ingero.diagnose.incidents.incident_changes import Change, ChangeKind
from ingero.errors import IngeroError
from ingero.given_up import LAUNCHES_OFF
from ingero.serve.text.styles import plain
from ingero.store.errors import StoreError
from ingero.store.records import SessionFacts
from ingero.store.writing.writer import Writer
from tests.unit.metrics_seconds import second
from tests.unit.run_ingero import Answer, run_ingero

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., Answer]
NEEDS_SYSTEMD = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd-analyze: apt-get install systemd"
)


class Listener:
    """Where systemd would listen."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._socket.setblocking(False)
        self.environ = {"NOTIFY_SOCKET": address}

    def heard(self) -> list[str]:
        """The messages since the last call."""
        found = []
        while True:
            try:
                found.append(self._socket.recv(65536).decode())
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Listener]:
    """A socket in the file system, or one without a file, as systemd uses for containers."""
    found = Listener(str(tmp_path / "notify") if request.param == "path" else f"@ingero-{os.getpid()}-{time.time_ns()}")
    yield found
    found.close()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `ingero ARGUMENTS`; returns exit code, standard output and standard error."""
    return partial(run_ingero, monkeypatch, capsys)


def test_systemd_is_told_by_datagrams(listener: Listener) -> None:
    manager = ServiceManager({**listener.environ, "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())})
    manager.ready("recording")
    manager.status("recording")  # the same again is not sent
    manager.status("two\nlines\x1b[2J" + "x" * 1000)
    manager.alive()
    manager.reloading()
    manager.stopping()
    first, second, third, fourth, fifth = listener.heard()
    assert first == "READY=1\nWATCHDOG_USEC=60000000\nSTATUS=recording"
    assert re.fullmatch(r"STATUS=two\\nlines\\x1b\[2Jx{1,300}", second)
    assert third == "WATCHDOG=1"
    assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+\nWATCHDOG_USEC=600000000", fourth)
    assert fifth == "STOPPING=1"


@pytest.mark.parametrize("more", [{}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}])
def test_a_watchdog_that_is_not_ours_is_not_fed(more: Mapping[str, str], listener: Listener) -> None:
    manager = ServiceManager({**listener.environ, **more})
    manager.alive()
    manager.ready("x")
    assert listener.heard() == ["READY=1\nSTATUS=x"]


@pytest.mark.parametrize("address", ["", "@", "vsock:2:1234", "relative", "/nobody/listens/here", "/" + "x" * 200])
def test_nobody_who_listens_is_no_error(address: str) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000"})
    manager.ready("x")
    manager.alive()
    assert manager.is_there is address.startswith(("/",))


def test_a_listener_that_reads_nothing_keeps_nobody_waiting(tmp_path: Path) -> None:
    listener = Listener(str(tmp_path / "full"))
    manager = ServiceManager(listener.environ)
    begin_s = time.monotonic()
    for number in range(5000):
        manager.status(str(number))
    assert time.monotonic() - begin_s < 5
    listener.close()


class Shelf:
    """A store that a test writes by hand. written: up to which position."""

    def __init__(self) -> None:
        self.handed_over = self.written = 0
        self.error: Exception | None = None

    def position(self) -> int:
        return self.handed_over

    def is_stored(self, position: int) -> bool:
        return self.written >= position


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def watched(listener: Listener) -> ServiceManager:
    return ServiceManager({**listener.environ, "WATCHDOG_USEC": "60000000"})


def kinds(messages: list[str]) -> list[str]:
    return [message.partition("=")[0] for message in messages]


def test_it_is_ready_when_the_first_second_has_been_written(listener: Listener, shelf: Shelf) -> None:
    state = RecordingState(watched(listener), shelf, "/srv/a.db")
    shelf.handed_over = 5
    state.second(1)
    shelf.handed_over = 9
    state.second(1)
    assert kinds(listener.heard()) == ["STATUS"]  # the rows of the first second wait
    shelf.written = 5
    state.second(2)
    heard = listener.heard()
    assert kinds(heard) == ["WATCHDOG", "READY"]
    assert heard[1].endswith("STATUS=recording 2 processes into /srv/a.db; no incident so far")
    state.second(2)  # what came up to the third second is not written
    assert listener.heard() == []
    shelf.written = 9
    state.second(2)
    assert kinds(listener.heard()) == ["WATCHDOG"]


def test_a_store_that_stands_still_starves_the_watchdog_and_one_that_says_why_does_not(
    listener: Listener, shelf: Shelf
) -> None:
    state = RecordingState(watched(listener), shelf, "/srv/a.db")
    shelf.handed_over = shelf.written = 1
    state.second(1)
    state.second(1)
    shelf.handed_over = 2
    state.second(1)
    listener.heard()
    for _ in range(3):
        state.second(1)
    assert listener.heard() == []
    shelf.error = StoreError("no space left", hint="make room")
    state.second(1)
    assert listener.heard() == ["WATCHDOG=1", "STATUS=not written: no space left"]


def test_the_status_is_the_last_verdict(listener: Listener, shelf: Shelf) -> None:
    state = RecordingState(watched(listener), shelf, "/srv/a.db")
    shelf.written = 1
    state.second(1)
    state.second(1)
    listener.heard()
    state.finding(Change(ChangeKind.OPENED, incident()))
    assert listener.heard() == []  # it comes in a thread of its own, and is told with the next second
    state.second(1)
    [_, status] = listener.heard()
    assert "incident 3 opened: HIGH cpu-contention" in status
    assert "python [7] lost 40%" in status


def incident() -> Incident:
    """As far as a line about it looks at it."""
    import types  # noqa: PLC0415

    return types.SimpleNamespace(  # type: ignore[return-value]
        number=3, severity=types.SimpleNamespace(name="HIGH"), cause="cpu-contention", start_ns=1, end_ns=None,
        lost_ns=0, summary="python [7] lost 40%",
    )  # fmt: skip


def test_a_journal_has_what_changes_and_no_line_each_second() -> None:
    lines: list[str] = []
    with open_view(
        lambda line: lines.append(plain(line)), as_json=False, verbose=False, database=None, is_service=True
    ) as view:
        view.second(second())
        assert lines == []
        view.second(second(not_traced=("launches",)))
        view.second(second(not_traced=("launches",)))
        view.second(second())
        assert lines == [f"  tracing reduced: {LAUNCHES_OFF.text}", "  full tracing resumed"]
        for kind in ChangeKind:
            view.finding(Change(kind, incident()))
    assert [" opened: " in line or " closed: " in line for line in lines[2:]] == [True, True]


def test_without_a_recording_it_is_ready_after_the_first_second(listener: Listener) -> None:
    state = RecordingState(watched(listener), None, "")
    state.second(0)
    state.second(0)
    assert kinds(listener.heard()) == ["STATUS", "WATCHDOG", "READY"]


def test_the_writer_says_what_of_that_is_in_the_file(tmp_path: Path) -> None:
    from ingero.store.writing import tables  # noqa: PLC0415

    with Writer(tmp_path / "a.db", session=SessionFacts(uuid="u", started_ns=1), node="n") as writer:
        assert writer.is_stored(writer.position())
        rows = tables.DROPS.rows(1, session=writer.session, start_ns=1, counter="x", reason=[""], count=[1])
        writer.append(tables.DROPS, rows)
        position = writer.position()
        writer.flush()
        assert writer.is_stored(position)
        assert not writer.is_stored(writer.position() + 1)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[[str], TraceSettings]:
    """The settings with a text as ingero.yaml."""

    def of(text: str) -> TraceSettings:
        (tmp_path / "ingero.yaml").write_text(text)
        return resolve({}, {"INGERO_CONFIG": str(tmp_path / "ingero.yaml")}, uid=os.getuid())

    return of


@pytest.fixture
def sighup_as_before() -> Iterator[None]:
    """A recording that may begin anew leaves its handler until it does."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("sighup_as_before")
def test_sighup_rereads_the_settings_under_a_service_manager(
    listener: Listener, settings: Callable[[str], TraceSettings]
) -> None:
    manager = ServiceManager(listener.environ)
    text = "max-db: 1g\n"
    with _signals(takes_reloads=True) as seen:
        reload = _Reload(seen, settings(text), lambda: settings(text), manager)
        assert not reload.is_wanted()
        os.kill(os.getpid(), signal.SIGHUP)
        assert not reload.is_wanted()  # nothing is different
        assert kinds(listener.heard()) == ["RELOADING", "READY"]
        text = "max-db: ten\n"
        os.kill(os.getpid(), signal.SIGHUP)
        assert not reload.is_wanted()
        assert "the settings stay as they were" in listener.heard()[1]
        text = "max-db: 2g\n"
        os.kill(os.getpid(), signal.SIGHUP)
        assert reload.is_wanted()
        assert kinds(listener.heard()) == ["RELOADING"]  # READY is for the recording that begins then
        assert reload.is_wanted()
        assert (reload.is_due, seen.stop) == (True, False)


def test_sighup_ends_a_recording_that_no_service_manager_started() -> None:
    with _signals(takes_reloads=False) as seen:
        os.kill(os.getpid(), signal.SIGHUP)
        assert seen == _ReceivedSignals(stop=True)


def test_a_signal_that_comes_while_it_begins_anew_is_not_lost() -> None:
    program = (
        "import os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])\n"  # as restart leaves it to its successor
        "os.kill(os.getpid(), signal.SIGHUP)\n"
        "from ingero.cli.trace.recording import _signals\n"  # starts threads of libraries, which inherit that
        "with _signals(takes_reloads=True) as seen:\n"
        "    print(seen.reload, signal.SIGHUP in signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True False\n", "")


def test_beginning_anew_is_the_same_process_with_the_same_command_line(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "print(os.getpid(), sys.argv[1:], flush=True)\n"
        "if not os.environ.get('AGAIN'):\n"
        "    os.environ['AGAIN'] = '1'\n"
        "    from ingero.cli.trace.recording import restart\n"
        "    restart()\n"
    )
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, str(tmp_path / "program.py"), "a b", "--db=x"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == second


@pytest.fixture
def unit_folder(tmp_path: Path) -> Path:
    """The units of a program that is there, as systemd would find them."""
    for name, text in units(("/bin/true",)).items():
        (tmp_path / name).write_text(text)
    return tmp_path


@NEEDS_SYSTEMD
@pytest.mark.parametrize("name", [TRACE, DASHBOARD])
def test_systemd_finds_no_fault_in_the_unit(name: str, unit_folder: Path) -> None:
    command = ["systemd-analyze", "verify", "--man=no", str(unit_folder / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "ingero" in line]
    assert (said, done.returncode) == ([], 0)


@NEEDS_SYSTEMD
@pytest.mark.parametrize(("name", "most"), [(TRACE, 3.0), (DASHBOARD, 2.0)])
def test_the_unit_is_exposed_no_more_than_said(name: str, most: float, unit_folder: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", str(unit_folder / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(rf"Overall exposure level for {re.escape(name)}: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= most


def test_the_agents_unit_has_five_capabilities_and_no_root() -> None:
    text = units()[TRACE]
    for key in ("AmbientCapabilities", "CapabilityBoundingSet"):
        assert re.findall(rf"^{key}=(.*)$", text, re.MULTILINE) == [" ".join(CAPABILITIES)]
    assert re.findall(r"^User=(.*)$", text, re.MULTILINE) == ["ingero"]
    assert re.findall(r"^(?:Ambient|CapabilityBounding).*=(.*)$", units()[DASHBOARD], re.MULTILINE) == ["", ""]


def test_a_program_that_a_unit_cannot_name_is_refused() -> None:
    for word in ("/opt/my ingero", "/opt/%h", "/opt/$x", 'a"b', "a;b", "a\nb", ""):
        with pytest.raises(ProgramPathError):
            units((word,))


def test_the_first_settings_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "ingero.yaml").write_text(first_settings())
    assert {entry.option.key: entry.text for entry in read_config(tmp_path / "ingero.yaml")} == {
        "db": "/var/lib/ingero/ingero.db", "max-db": "10g",
    }  # fmt: skip


def test_install_writes_four_files_and_says_so(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("service", "install", "--root", str(tmp_path))
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert code == 0
    assert written == {
        "etc/systemd/system/ingero.service", "etc/systemd/system/ingero-dashboard.service",
        "etc/sysusers.d/ingero.conf", "etc/ingero/ingero.yaml",
    }  # fmt: skip
    assert all(f"write {tmp_path / name}" in out for name in written)
    assert all((tmp_path / name).stat().st_mode & 0o777 == 0o644 for name in written)
    assert (tmp_path / "etc/sysusers.d/ingero.conf").read_text().endswith(sysusers())


def test_install_done_twice_changes_nothing(run: Run, tmp_path: Path) -> None:
    run("service", "install", "--root", str(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    code, out, _ = run("service", "install", "--root", str(tmp_path))
    assert (code, "write " in out, out.count("as it should be")) == (0, False, 3)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_a_dry_run_does_nothing(command: str, run: Run, tmp_path: Path) -> None:
    if command == "uninstall":
        run("service", "install", "--root", str(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    code, out, _ = run("service", command, "--root", str(tmp_path), "--dry-run")
    assert (code, sorted(tmp_path.rglob("*"))) == (0, before)
    assert ("write " if command == "install" else "remove ") in out


def test_a_dry_run_names_the_commands_that_start_it(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(service, "_SYSTEMD_RUNS", tmp_path)
    monkeypatch.setattr(service, "_is_ours", lambda _path: False)
    monkeypatch.setattr(service, "_refuse_others", lambda *_: None)
    code, out, _ = run("service", "install", "--dashboard", "--dry-run")
    assert code == 0
    for line in ("systemd-sysusers /etc/sysusers.d/ingero.conf", "systemctl daemon-reload"):
        assert f"run {line}\n" in out
    assert "run systemctl enable --now ingero.service ingero-dashboard.service\n" in out


def test_files_of_others_are_neither_written_over_nor_doubled(run: Run, tmp_path: Path) -> None:
    unit = tmp_path / "etc/systemd/system/ingero.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/bin/mine\n")
    code, _, err = run("service", "install", "--root", str(tmp_path))
    assert (code, "was not written by" in err) == (2, True)
    assert run("service", "uninstall", "--root", str(tmp_path))[0] == 0
    assert unit.read_text() == "[Service]\nExecStart=/bin/mine\n"
    unit.unlink()
    unit.symlink_to("/dev/null")  # masked
    assert run("service", "install", "--root", str(tmp_path))[0] == 2
    assert not list(tmp_path.glob("etc/ingero/*"))


def test_what_a_package_brings_is_used_and_not_doubled(run: Run, tmp_path: Path) -> None:
    brought = {
        tmp_path / "usr/lib/systemd/system" / TRACE: units()[TRACE],
        tmp_path / "usr/lib/systemd/system" / DASHBOARD: units()[DASHBOARD],
        tmp_path / "usr/lib/sysusers.d/ingero.conf": sysusers(),
    }
    for path, text in brought.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    code, out, _ = run("service", "install", "--root", str(tmp_path))
    assert (code, out.count("as its package has it: ")) == (0, 3)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.glob("etc/*/*")] == ["etc/ingero/ingero.yaml"]
    code, out, _ = run("service", "uninstall", "--root", str(tmp_path))
    assert (code, out.count("(of a package)")) == (0, 3)
    assert {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == brought


def test_uninstall_removes_what_install_wrote_and_keeps_what_is_somebodys(run: Run, tmp_path: Path) -> None:
    run("service", "install", "--root", str(tmp_path))
    (tmp_path / "etc/ingero/ingero.yaml").write_text("max-db: 1g\n")
    (tmp_path / "var/lib/ingero").mkdir(parents=True)
    code, out, _ = run("service", "uninstall", "--root", str(tmp_path))
    kept = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert (code, kept) == (0, ["etc/ingero/ingero.yaml"])
    assert out.count("kept: ") == 2
    assert "nothing of" in run("service", "uninstall", "--root", str(tmp_path))[1]


def test_settings_that_nobody_changed_go_with_the_units(run: Run, tmp_path: Path) -> None:
    run("service", "install", "--root", str(tmp_path))
    run("service", "uninstall", "--root", str(tmp_path))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not (tmp_path / "etc/ingero").exists()


def test_settings_that_are_there_stay_and_one_without_a_database_is_said(run: Run, tmp_path: Path) -> None:
    (tmp_path / "etc/ingero").mkdir(parents=True)
    (tmp_path / "etc/ingero/ingero.yaml").write_text("max-db: 1g\n")
    code, out, err = run("service", "install", "--root", str(tmp_path))
    assert (code, "kept as it is" in out, "it names no `db`" in err) == (0, True, True)
    assert (tmp_path / "etc/ingero/ingero.yaml").read_text() == "max-db: 1g\n"


def test_status_says_what_is_installed(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("service", "status", "--root", str(tmp_path))
    assert (code, out.count("not installed")) == (1, 2)
    run("service", "install", "--root", str(tmp_path))
    code, out, _ = run("service", "status", "--root", str(tmp_path))
    assert (code, out.count("of ingero service install")) == (1, 2)


def test_a_command_that_fails_is_told_with_what_it_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    actions = service._Actions(tmp_path, is_dry=False)
    with pytest.raises(service.ServiceError, match=r"sh -c .*: no such thing"):
        actions.run("sh", "-c", "echo no such thing >&2; exit 1")
    with pytest.raises(service.ServiceError, match="nobody-has-this"):
        actions.run("nobody-has-this-command")
    assert "run sh -c" in capsys.readouterr().out


def test_only_root_writes_where_systemd_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(IngeroError, match="root") as caught:
        service._Actions(Path("/"), is_dry=False).need_rights()
    assert caught.value.hint.startswith("sudo ")


def test_the_unit_names_the_program_by_what_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = tmp_path / "releases/1.0/bin/ingero"
    release.parent.mkdir(parents=True)
    release.write_text("#!/bin/sh\n")
    release.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ingero").symlink_to(release)
    monkeypatch.setattr(sys, "argv", [str(release), "service", "install"])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert service._program() == (str(release),)  # nothing else is known
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin")
    assert service._program() == (str(tmp_path / "bin/ingero"),)
    monkeypatch.setattr(sys, "argv", ["ingero", "service", "install"])
    assert service._program() == (str(tmp_path / "bin/ingero"),)
    (tmp_path / "bin/ingero").unlink()
    (tmp_path / "bin/ingero").write_text("#!/bin/sh\n")
    (tmp_path / "bin/ingero").chmod(0o755)  # another one
    monkeypatch.setattr(sys, "argv", [str(release), "service", "install"])
    assert service._program() == (str(release),)
    monkeypatch.setattr(sys, "argv", ["/x/main.py", "service", "install"])
    assert service._program() == (sys.executable, "-m", "ingero.cli.main")


def test_a_program_that_others_cannot_reach_is_said(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    program = tmp_path / "closed" / "ingero"
    program.touch()
    assert any(str(program) in line for line in service._unreachable([str(program)]))
