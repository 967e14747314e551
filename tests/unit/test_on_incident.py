"""`ingero trace --on-incident`: real commands, run without rights and within limits, and what they are given."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ingero.cli.config.option_table import OptionError
from ingero.cli.config.settings import TraceSettings, resolve
from ingero.cli.trace import incident_command
from ingero.cli.trace.incident_command import MAX_WAITING, IncidentCommand, open_incident_command
from ingero.cli.trace.incident_event import MAX_BYTES, incident_event
from ingero.diagnose.findings import Affected, Culprit, FindingKind, Incident, Severity
from ingero.diagnose.incidents.incident_changes import Change, ChangeKind
from ingero.diagnose.incidents.incident_json import incident_json
from ingero.sandbox import command_runner
from ingero.sandbox.command_runner import NOBODY, CommandError, CommandResult, CommandRunner
from ingero.store.opening.locations import Owner
from tests.unit.ingero_lines import ingero_lines, parse, shell_blocks

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "on-incident.md"
IS_ROOT = os.geteuid() == 0
HOSTILE = ('"}$(id)', "`reboot`;\n{}", "\x1b[2J\u202e", "<!channel> @all")
INCIDENT = Incident(
    number=1,
    cause="cpu-contention",
    resource="",
    root="",
    kind=FindingKind.INCIDENT,
    severity=Severity.HIGH,
    start_ns=1_760_000_000_000_000_000,
    end_ns=None,
    lost_ns=2_000_000_000,
    lost_ratio=0.4,
    explained_ratio=1.0,
    peak_ratio=0.8,
    summary=f"python [100] lost 2.00 s while {' '.join(HOSTILE)} ran",
    affected=(Affected(process=1, pid=100, name="python", lost_ns=2_000_000_000),),
    culprits=tuple(Culprit(pid=900 + at, name=name, lost_ns=1) for at, name in enumerate(HOSTILE)),
)
OPENED = Change(ChangeKind.OPENED, INCIDENT)
CLOSED = Change(ChangeKind.CLOSED, replace(INCIDENT, end_ns=INCIDENT.start_ns + 5 * 10**9))


@contextmanager
def running(*arguments: str, wall_s: float = 20.0) -> Iterator[CommandRunner]:
    with CommandRunner(arguments, NOBODY, wall_s) as runner:
        runner.start()
        yield runner


@contextmanager
def commands(*arguments: str, wall_s: float = 20.0) -> Iterator[IncidentCommand]:
    with CommandRunner(arguments, NOBODY, wall_s) as runner:
        command = IncidentCommand(runner, node="gpu-01", recording="/r.db")
        command.start()
        yield command


def printed(*arguments: str) -> str:
    """What a command prints that exits with 0."""
    with running(*arguments) as runner:
        ended = runner.run(b"{}")
    assert ended.exit_code == 0, ended
    return ended.output


def is_running(marker: str) -> bool:
    """Whether there is a process with that argument."""
    found = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
    return any(marker.encode() in text for text in found)


def test_a_command_gets_the_event_on_its_standard_input() -> None:
    with running("cat") as runner:
        assert json.loads(runner.run(b'{"a": 1}').output) == {"a": 1}
        assert json.loads(runner.run(b'{"a": 2}').output) == {"a": 2}


def test_a_command_that_reads_nothing_blocks_nobody() -> None:
    with running("true") as runner:
        assert runner.run(b"a" * MAX_BYTES) == CommandResult(exit_code=0)


def test_no_shell_has_a_part_in_it() -> None:
    assert printed("echo", "$(id) `id` *; id | cat") == "$(id) `id` *; id | cat\n"


@pytest.mark.skipif(not IS_ROOT, reason="only root has rights to lose")
def test_root_becomes_nobody_without_groups_capabilities_or_a_way_back() -> None:
    status = printed("grep", "-E", "^(Uid|Gid|Groups|Cap(Inh|Prm|Eff|Amb)|NoNewPrivs)", "/proc/self/status")
    found = {name.rstrip(":"): values for name, *values in (line.split() for line in status.splitlines())}
    assert found["Uid"] == found["Gid"] == ["65534"] * 4
    assert found["Groups"] == []
    assert {int(found[f"Cap{kind}"][0], 16) for kind in ("Inh", "Prm", "Eff", "Amb")} == {0}
    assert found["NoNewPrivs"] == ["1"]


@pytest.mark.skipif(not IS_ROOT, reason="only root can become somebody else")
def test_who_called_sudo_is_who_runs_it() -> None:
    owner = Owner(uid=4321, gid=4322, home=Path("/home/somebody"))
    with CommandRunner(["sh", "-c", "id -u; id -g; id -G; echo $HOME"], incident_command._user(owner), 20.0) as runner:
        runner.start()
        assert runner.run(b"{}").output.split() == ["4321", "4322", "4322", "/home/somebody"]
    assert incident_command._user(replace(owner, uid=0)) == NOBODY


def test_it_inherits_no_file_and_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGERO_DASHBOARD_TOKEN", "secret")
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    try:
        with running(
            "sh", "-c", "ls /proc/self/fd; env -u PWD -u SHLVL -u _; pwd; ps -o sid= -p $$ | grep -qw $$"
        ) as one:
            ended = one.run(b"{}")
    finally:
        os.close(reading)
        os.close(writing)
    assert ended.exit_code == 0  # it leads a session of its own
    own = ["0", "1", "2", "3", "/", "LANG=C.UTF-8", f"HOME={NOBODY.home}", f"PATH={command_runner.PATH}"]  # 3: of ls
    assert sorted(ended.output.split()) == sorted(own)


def test_a_hanging_command_is_killed_with_everything_that_it_started() -> None:
    marker = f"{60 + os.getpid() / 10**7:.7f}"
    script = (
        f"sleep {marker} & setsid sleep {marker} & (setsid sh -c 'sleep {marker} & sleep {marker}' &) ; sleep {marker}"
    )
    with running("sh", "-c", script, wall_s=0.7) as runner:
        began_s = time.monotonic()
        ended = runner.run(b"{}")
        assert time.monotonic() - began_s < 0.7 + command_runner._PATIENCE_S
        assert (ended.exit_code, ended.is_timed_out) == (None, True)
        assert not is_running(marker)
        assert runner.run(b"{}").is_timed_out  # the next one is run


def test_what_a_command_leaves_running_is_ended_with_it() -> None:
    marker = f"{61 + os.getpid() / 10**7:.7f}"
    with running("sh", "-c", f"setsid sleep {marker} & exit 0") as runner:
        assert runner.run(b"{}").exit_code == 0
        assert not is_running(marker)


def test_a_command_that_prints_without_end_is_bounded() -> None:
    with running("yes", wall_s=0.5) as runner:
        ended = runner.run(b"{}")
    assert ended.is_timed_out
    assert len(ended.output) == command_runner._OUTPUT_BYTES


def test_a_command_that_grows_without_end_fails() -> None:
    with running("dd", "if=/dev/zero", "of=/dev/null", "bs=1G", "count=1") as runner:
        ended = runner.run(b"{}")
    assert ended.exit_code == 1
    assert "memory exhausted" in ended.output


def test_a_command_that_runs_ends_with_the_agent_that_is_killed() -> None:
    marker = f"{62 + os.getpid() / 10**7:.7f}"
    program = (
        "from ingero.sandbox.command_runner import *\n"
        f"with CommandRunner(['sh', '-c', 'setsid sleep {marker} & sleep {marker}'], NOBODY, 60) as runner:\n"
        "    runner.start()\n"
        "    print('runs', flush=True)\n"
        "    runner.run(b'')\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"runs\n"
        wait_until(lambda: is_running(f"sleep\0{marker}"))
        agent.kill()
    wait_until(lambda: not is_running(f"sleep\0{marker}"))


def wait_until(is_so: Any) -> None:
    end_s = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.mark.parametrize("name", ["no-such-program", "/etc/passwd", "/no/such/program"])
def test_what_cannot_be_run_is_said_before_anything_is_recorded(name: str) -> None:
    with CommandRunner([name], NOBODY, 1.0) as runner, pytest.raises(CommandError, match="cannot run"):
        runner.start()


@pytest.fixture
def seen() -> Iterator[Path]:
    """A file to which everybody may write."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "seen"
        path.touch()
        path.chmod(0o666)
        yield path


def test_opening_and_closing_run_the_command_and_growing_does_not(seen: Path) -> None:
    with commands("sh", "-c", f"cat >> {seen}; echo >> {seen}") as command:
        for change in (OPENED, Change(ChangeKind.UPDATED, INCIDENT), CLOSED):
            command.finding(change)
        command.finish()
        assert command.drops() == {}
    opened, closed = map(json.loads, seen.read_text().splitlines())
    assert [opened["event"], closed["event"]] == ["opened", "closed"]
    assert opened["incident"] == json.loads(json.dumps(incident_json(INCIDENT)))
    assert closed["incident"]["end_ns"] == CLOSED.incident.end_ns


def test_a_command_that_fails_is_counted_and_said_with_its_last_line(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING),
        commands("sh", "-c", "echo first; echo '\x1b[2Jno route' >&2; exit 7") as one,
    ):
        one.finding(OPENED)
        one.finish()
        assert one.drops() == {"incident_commands_failed": 1}
        assert one.drops() == {}
    assert caplog.messages == ["--on-incident: incident 1 opened: exit code 7; it printed: \\x1b[2Jno route"]


def test_a_command_that_hangs_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), commands("sleep", "60", wall_s=0.3) as command:
        command.finding(OPENED)
        command.finish()
        assert command.drops() == {"incident_commands_timed_out": 1}
    assert "killed after" in caplog.text


def test_more_events_than_the_queue_holds_are_dropped_counted_and_never_waited_for() -> None:
    with commands("sleep", "60", wall_s=60.0) as command:
        began_s = time.monotonic()
        for _ in range(MAX_WAITING + 10):
            command.finding(OPENED)
        assert time.monotonic() - began_s < 1.0
        dropped = command.drops()["incident_commands_queue_full"]
        assert dropped in (9, 10)  # one may have been taken out meanwhile


def test_the_end_of_a_recording_waits_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incident_command, "_END_S", 0.3)
    began_s = time.monotonic()
    with commands("sleep", "60", wall_s=60.0) as command:
        for _ in range(3):
            command.finding(OPENED)
        command.finish()
        assert command.drops() == {"incident_commands_not_run": 3}
        command.finding(OPENED)
        command.finish()
        assert command.drops() == {}
    assert time.monotonic() - began_s < 10


def test_a_runner_that_was_killed_costs_the_runs_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), commands("true") as command:
        os.kill(command._runner._pid, 9)
        command.finding(OPENED)
        command.finish()
        assert command.drops() == {"incident_commands_not_run": 1}
    assert "does not answer" in caplog.text


def test_names_that_others_chose_come_out_as_they_are_in_ascii() -> None:
    raw = incident_event(OPENED, node="gpu-01", recording="/r.db", now_ns=INCIDENT.start_ns)
    assert raw.isascii()
    assert b"\n" not in raw
    event = json.loads(raw)
    assert [one["name"] for one in event["incident"]["culprits"]] == list(HOSTILE)
    assert (event["node"], event["recording"], event["left_out"]) == ("gpu-01", "/r.db", [])


def test_the_line_for_people_holds_no_mention_link_or_control_character() -> None:
    text = json.loads(incident_event(OPENED, node="gpu-01", recording="/r.db", now_ns=INCIDENT.start_ns))["text"]
    assert text.startswith("gpu-01: ")
    assert text.isprintable()
    assert not set("<>@") & set(text)


def test_an_incident_that_is_too_large_loses_its_largest_fields_and_says_so() -> None:
    many = replace(INCIDENT, culprits=INCIDENT.culprits * 5_000)
    raw = incident_event(Change(ChangeKind.OPENED, many), node="n", recording="", now_ns=0)
    event = json.loads(raw)
    assert len(raw) <= MAX_BYTES
    assert event["left_out"] == ["culprits"]
    assert event["incident"]["cause"] == "cpu-contention"


@pytest.fixture
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody's own ingero.yaml has a part in it."""
    path = tmp_path / "ingero.yaml"
    path.touch()
    monkeypatch.setenv("INGERO_CONFIG", str(path))
    return path


def settings(**flags: str) -> TraceSettings:
    return resolve(flags, dict(os.environ), uid=os.getuid())


@pytest.mark.usefixtures("configuration")
def test_the_option_is_split_as_a_shell_would_split_it() -> None:
    assert settings(on_incident="notify --to 'the ops' \"$HOME\"").on_incident == (
        "notify", "--to", "the ops", "$HOME"
    )  # fmt: skip
    assert settings().on_incident == ()


@pytest.mark.usefixtures("configuration")
@pytest.mark.parametrize("text", ["", "  ", "'open", "''"])
def test_what_names_no_program_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--on-incident"):
        settings(on_incident=text)


@pytest.mark.usefixtures("configuration")
def test_without_a_recording_there_are_no_incidents() -> None:
    with pytest.raises(OptionError, match="nothing is recorded"):
        settings(on_incident="true", record="false")
    with open_incident_command(replace(settings(on_incident="true"), record=False)) as command:
        assert command is None


@pytest.mark.usefixtures("configuration")
def test_arguments_which_may_hold_a_secret_are_not_stored() -> None:
    assert settings(on_incident="curl https://hooks.example/T0KEN").as_texts()["on_incident"] == "curl"


def test_ingero_yaml_has_a_key_for_it(configuration: Path) -> None:
    configuration.write_text("on-incident: curl -s --data-binary @- http://127.0.0.1:9000/\n")
    assert settings().on_incident[:2] == ("curl", "-s")


def of_the_guide() -> list[str]:
    """The commands that the guide gives to `--on-incident`, in its order."""
    lines = [line for block in shell_blocks(GUIDE.read_text()) for line in ingero_lines(block)]
    for line in lines:
        parse(line)
    return [line[line.index("--on-incident") + 1] for line in lines]


def test_the_webhook_of_the_guide_posts_the_event(configuration: Path) -> None:
    del configuration
    posted: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append((self.headers["Content-Type"], self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/hook"
        words = settings(on_incident=of_the_guide()[0].replace("https://alerts.example/hook", url)).on_incident
        with commands(*words) as command:
            command.finding(OPENED)
            command.finish()
            assert command.drops() == {}
        server.shutdown()
    assert [kind for kind, _ in posted] == ["application/json"]
    assert json.loads(posted[0][1])["incident"]["cause"] == "cpu-contention"


@pytest.mark.skipif(not shutil.which("jq"), reason="jq is not installed")
@pytest.mark.parametrize(("severity", "is_posted"), [(Severity.HIGH, True), (Severity.LOW, False)])
def test_the_script_of_the_guide_posts_only_what_is_severe(severity: Severity, is_posted: bool, seen: Path) -> None:
    [script] = [block for block in shell_blocks(GUIDE.read_text()) if block.startswith("#!/bin/sh\n")]
    webhook = "curl -sS --fail --data-binary @- https://alerts.example/hook"
    assert webhook in script
    with commands("sh", "-c", script.replace(webhook, f"(cat; echo) >> {seen}")) as command:
        command.finding(Change(ChangeKind.OPENED, replace(INCIDENT, severity=severity)))
        command.finish()
        assert command.drops() == {}
    assert [json.loads(line)["event"] for line in seen.read_text().splitlines()] == ["opened"] * is_posted
