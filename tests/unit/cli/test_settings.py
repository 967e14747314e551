"""Options of `ingero trace`: where they may be given, which source wins, and what is refused."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from ingero.cli.config import file as config_file
from ingero.cli.config import settings
from ingero.cli.config.option_table import BY_NAME, OPTIONS, Option
from ingero.cli.config.settings import TraceSettings, resolve
from ingero.cli.config.switches import click_options
from ingero.cli.main import cli
from ingero.discover.python_walkers import PyWalker
from ingero.errors import IngeroError
from ingero.serve.http.addresses import Address
from ingero.serve.otlp_endpoint import Endpoint

ROOT = Path(__file__).resolve().parents[3]
Resolve = Callable[..., TraceSettings]
# a text for each option that is not its default, and the value it becomes
OTHER: dict[str, tuple[str, object]] = {
    "pid": (str(os.getpid()), (os.getpid(),)),
    "user": ("4321", 4321),
    "duration": ("1h30m", 5400.0),
    "db": ("/srv/a.db", Path("/srv/a.db")),
    "max-db": ("500m", 500 << 20),
    "record": ("false", False),
    "record-all": ("true", True),
    "sampling-rate": ("100", 100),
    "launches-at": ("driver", True),
    "cuda-lib": ("/a/x:/b/y", (Path("/a/x"), Path("/b/y"))),
    "stack": ("false", False),
    "py-walker": ("userspace", PyWalker.USERSPACE),
    "nccl": ("false", False),
    "io": ("false", False),
    "tcp": ("false", False),
    "net": ("false", False),
    "deadband": ("5%", 5.0),
    "heartbeat": ("2m", 120.0),
    "max-overhead": ("0.5%", 0.005),
    "max-cpu": ("10", 0.1),
    "ringbuf-size": ("32m", 32 << 20),
    "node": ("gpu-7", "gpu-7"),
    "serve": ("127.0.0.1:8080", Address("127.0.0.1", 8080)),
    "on-incident": ("notify --to 'the ops'", ("notify", "--to", "the ops")),
    "prometheus": ("127.0.0.1:9464", Address("127.0.0.1", 9464)),
    "otlp": ("collector:4318", Endpoint(address=Address("collector", 4318))),
    "otlp-insecure": ("true", True),
    "metrics-compat": ("true", True),
    "json": ("true", True),
    "verbose": ("true", True),
    "debug": ("true", True),
    "log": ("/srv/a.log", Path("/srv/a.log")),
}
EVERY_OPTION = pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)


def field(option: Option) -> str:
    return "uid" if option.name == "user" else option.field


@pytest.fixture
def resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """Resolves flags by option name, an environment and the text of a configuration file in the user's home."""
    owner = settings.Owner(uid=1234, gid=1234, home=tmp_path)
    monkeypatch.setattr(settings, "invoking_user", lambda _environ, **_: owner)
    monkeypatch.setattr(config_file, "_SYSTEM_FILE", tmp_path / "absent.yaml")

    def run(environ: dict[str, str] | None = None, file: str | None = None, **flags: str) -> TraceSettings:
        path = tmp_path / ".config/ingero/ingero.yaml"
        if file is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file)
        return resolve(flags, environ or {}, uid=1234)

    return run


def beside(option: Option) -> dict[str, str]:
    """What an option needs to have an effect at all."""
    needed = {
        "heartbeat": {"INGERO_DEADBAND": "1"},
        "metrics-compat": {"INGERO_PROMETHEUS": ":9464"},
        "otlp-insecure": {"INGERO_OTLP": ":4318"},
    }
    return needed.get(option.name, {})


@EVERY_OPTION
def test_an_option_may_be_a_flag(option: Option, resolved: Resolve) -> None:
    text, value = OTHER[option.name]
    assert getattr(resolved(beside(option), **{option.field: text}), field(option)) == value


@EVERY_OPTION
def test_an_option_may_be_a_variable(option: Option, resolved: Resolve) -> None:
    text, value = OTHER[option.name]
    assert getattr(resolved({**beside(option), option.variable: text}), field(option)) == value


@EVERY_OPTION
def test_an_option_may_stand_in_the_file(option: Option, resolved: Resolve) -> None:
    text, value = OTHER[option.name]
    assert getattr(resolved(beside(option), file=f"{option.name}: {text}\n"), field(option)) == value


@EVERY_OPTION
def test_the_default_is_another_value_than_the_one_of_these_tests(option: Option, resolved: Resolve) -> None:
    assert getattr(resolved(), field(option)) != OTHER[option.name][1]


def test_a_flag_beats_a_variable_and_a_variable_beats_the_file(resolved: Resolve) -> None:
    file = "node: from-file\nmax-cpu: 1%\nmax-overhead: 1%\n"
    environ = {"INGERO_NODE": "from-variable", "INGERO_MAX_CPU": "2%"}
    found = resolved(environ, file=file, node="from-flag")
    assert (found.node, found.max_cpu, found.max_overhead) == ("from-flag", 0.02, 0.01)


@pytest.mark.parametrize("name", [option.name for option in OPTIONS if option.is_switch])
@pytest.mark.parametrize(
    ("spelling", "value"),
    [("--{}", True), ("--{}=true", True), ("--{}=false", False), ("--no-{}", False), ("--no-{0} --{0}", True)],
)
def test_a_switch_has_its_spellings(name: str, spelling: str, value: bool, resolved: Resolve) -> None:
    import rich_click as click  # noqa: PLC0415

    seen: dict[str, str | None] = {}
    probe = click.Command("x", params=click_options(), callback=lambda **flags: seen.update(flags))
    probe.main(spelling.format(name).split(), standalone_mode=False)
    given = {key: text for key, text in seen.items() if text is not None}
    assert getattr(resolved(beside(BY_NAME[name]), **given), name.replace("-", "_")) is value


@pytest.mark.parametrize("key", ["no-io: true", "no_io: yes", "io: off", "io: 0"])
def test_a_switch_may_be_negated_in_the_file(key: str, resolved: Resolve) -> None:
    assert resolved(file=key).io is False


def test_a_switch_may_be_negated_in_the_environment(resolved: Resolve) -> None:
    assert resolved({"INGERO_NO_IO": "true"}).io is False


def test_a_list_in_the_file_is_one_value(resolved: Resolve) -> None:
    found = resolved(file=f"pid: [{os.getpid()}, {os.getppid()}]\ncuda-lib:\n  - /a/x\n  - /b/y\n")
    assert found.pid == (os.getpid(), os.getppid())
    assert found.cuda_lib == (Path("/a/x"), Path("/b/y"))


@pytest.mark.parametrize(
    ("text", "seconds"), [("5m", 300), ("5min", 300), ("90s", 90), ("1h30m", 5400), ("2d", 172800), ("250ms", 0.25)]
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float, resolved: Resolve) -> None:
    assert resolved(duration=text).duration == seconds


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"max_db": "ten"}, "--max-db: 'ten' is not a size"),
        ({"max_db": "10k"}, "--max-db: '10k' is less than a database needs"),
        ({"duration": "0"}, "--duration: '0' is too short"),
        ({"record": "maybe"}, "--record: 'maybe' is neither true nor false"),
        ({"max_cpu": "200%"}, "--max-cpu: '200%' is not a percentage"),
        ({"sampling_rate": "-1"}, "--sampling-rate: '-1' is not a sampling rate"),
        ({"ringbuf_size": "1k"}, "--ringbuf-size: '1k' is not a valid ring buffer size"),
        ({"node": "a:b"}, "--node: 'a:b' is not a valid node name"),
        ({"user": "nobody-here"}, "--user: there is no user 'nobody-here'"),
        ({"user": "99999999999"}, "--user: no user can have the number 99999999999"),
        ({"launches_at": "none"}, "--launches-at: 'none' is neither driver nor both"),
        ({"py_walker": "gdb"}, "--py-walker: 'gdb' reads no Python frames"),
        ({"pid": "4194305"}, "--pid: no process 4194305 is running"),
        ({"pid": str(os.getpid()), "user": "all"}, "--pid and --user contradict each other"),
        ({"record_all": "true", "sampling_rate": "5"}, "--record-all and --sampling-rate contradict each other"),
        ({"heartbeat": "10s"}, "--heartbeat has no effect without --deadband"),
        ({"metrics_compat": "true"}, "--metrics-compat has no effect without --prometheus"),
        ({"otlp_insecure": "true"}, "--otlp-insecure has no effect without --otlp"),
        ({"otlp": "grpc://collector:4317"}, "is not a receiver"),
        ({"prometheus": "http://gpu-7:9464"}, "is not an address to listen on"),
        ({"config": "/absent.yaml"}, "no configuration file at /absent.yaml"),
    ],
)
def test_a_bad_value_is_refused_with_a_way_out(flags: dict[str, str], complaint: str, resolved: Resolve) -> None:
    with pytest.raises(IngeroError, match=re.escape(complaint)) as caught:
        resolved(**flags)
    assert caught.value.hint


def test_a_bad_variable_is_named(resolved: Resolve) -> None:
    with pytest.raises(IngeroError, match=r"INGERO_MAX_DB: 'ten' is not a size"):
        resolved({"INGERO_MAX_DB": "ten"})


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        ("node: a\nmax-dp: 1g\n", r"ingero.yaml, line 2: there is no option 'max-dp'"),
        ("node: a\n\nmax-db: ten\n", r"ingero.yaml, line 3: max-db: 'ten' is not a size"),
        ("node: a\nnode: b\n", r"ingero.yaml, line 2: node appears twice"),
        ("node:\n", r"ingero.yaml, line 1: node has no value"),
        ("trace:\n  node: a\n", r"ingero.yaml, line 1: there is no option 'trace'"),
        ("node: {a: b}\n", r"ingero.yaml, line 1: a plain value was expected"),
        ("- node\n", r"ingero.yaml, line 1: a list of options was expected"),
        ("node: 'a\n", r"ingero.yaml, line 2: found unexpected end of stream"),
    ],
)
def test_a_fault_in_the_file_comes_with_its_line(file: str, complaint: str, resolved: Resolve) -> None:
    with pytest.raises(IngeroError, match=complaint) as caught:
        resolved(file=file)
    assert caught.value.hint


def test_a_mistyped_key_comes_with_the_right_one(resolved: Resolve) -> None:
    with pytest.raises(IngeroError) as caught:
        resolved(file="max-dp: 1g\n")
    assert caught.value.hint == "perhaps max-db"


def test_a_stronger_source_settles_a_contradiction(resolved: Resolve) -> None:
    found = resolved(file="user: all\nsampling-rate: 5\n", pid=str(os.getpid()), record_all="true")
    assert found.pid == (os.getpid(),)
    assert (found.record_all, found.sampling_rate) == (True, 0)


def test_the_users_file_comes_before_the_systems(tmp_path: Path) -> None:
    system = tmp_path / "system.yaml"
    system.touch()
    assert config_file.find_config(None, tmp_path, system) == system
    mine = tmp_path / ".config/ingero/ingero.yaml"
    mine.parent.mkdir(parents=True)
    mine.touch()
    assert config_file.find_config(None, tmp_path, system) == mine
    assert config_file.find_config(str(system), tmp_path, system) == system


@pytest.mark.parametrize(
    ("uid", "user", "chosen"), [(1000, None, 1000), (0, None, None), (999, None, None), (65534, None, None),
                                (1000, "all", None), (1000, "root", 0), (0, "1001", 1001)]
)  # fmt: skip
def test_people_trace_their_own_processes_and_root_and_services_everybodys(
    uid: int, user: str | None, chosen: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(settings, "invoking_user", lambda _e, **_: settings.Owner(uid=uid, gid=uid, home=tmp_path))
    assert resolve({"user": user}, {}, uid=uid).uid == chosen


def test_whoever_called_sudo_is_the_user() -> None:
    someone = next(entry for entry in pwd.getpwall() if entry.pw_uid)
    found = resolve({}, {"SUDO_UID": str(someone.pw_uid)}, uid=0)
    assert (found.owner.uid, found.db) == (someone.pw_uid, Path(someone.pw_dir) / ".ingero/ingero.db")


def test_a_tilde_is_the_home_of_the_user_not_of_root(resolved: Resolve, tmp_path: Path) -> None:
    assert resolved(db="~/x.db").db == tmp_path / "x.db"


def test_the_ring_is_rounded_up_to_a_power_of_two(resolved: Resolve) -> None:
    assert resolved(ringbuf_size="30m").ring_bytes == 32 << 20
    assert resolved(ringbuf_size="32m").ring_bytes == 32 << 20


def test_the_help_is_the_one_that_was_reviewed() -> None:
    """A change is accepted with: COLUMNS=80 NO_COLOR=1 ingero trace --help > tests/data/trace-help.txt"""
    shown = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"}).invoke(cli, ["trace", "--help"], prog_name="ingero")
    reviewed = (ROOT / "tests/data/trace-help.txt").read_text()
    assert [line.rstrip() for line in shown.output.splitlines()] == [line.rstrip() for line in reviewed.splitlines()]


def test_the_help_fits_80_columns() -> None:
    assert max(map(len, (ROOT / "tests/data/trace-help.txt").read_text().splitlines())) <= 80


def test_a_pod_that_knows_its_node_records_under_that_name(resolved: Resolve) -> None:
    pod = {"NODE_NAME": "gpu-node-7", "MY_NODE_NAME": "other"}
    assert resolved(pod).node == "gpu-node-7"
    assert resolved({"MY_NODE_NAME": "gpu-node-8"}).node == "gpu-node-8"
    assert resolved(pod, file="node: from-file\n").node == "from-file"
    assert resolved(pod, node="from-flag").node == "from-flag"


@pytest.mark.parametrize("environ", [{}, {"NODE_NAME": ""}, {"NODE_NAME": "a:b"}])
def test_without_such_a_name_it_is_the_host_name(resolved: Resolve, environ: dict[str, str]) -> None:
    assert resolved(environ).node == os.uname().nodename
