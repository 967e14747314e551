"""ingero.yaml: one file for every command, its schema, its example, and what `ingero config` says of it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingero.cli import recording_path
from ingero.cli.config import file as config_file
from ingero.cli.config.command import SECRET_VARIABLES
from ingero.cli.config.file import FILE_NAME, ConfigError, parse_config, read_config
from ingero.cli.config.option_table import ALL_OPTIONS, GENERAL, OPTIONS, SECTIONS, Option
from ingero.cli.config.schema import example, schema
from ingero.cli.config.settings import resolve_section
from ingero.cli.main import cli
from ingero.errors import IngeroError
from ingero.serve.http.addresses import Address
from tests.unit.run_ingero import Answer, run_ingero

ROOT = Path(__file__).resolve().parents[3]
Run = Callable[..., Answer]
Write = Callable[[str], Path]
EVERY_OPTION = pytest.mark.parametrize("option", ALL_OPTIONS, ids=lambda option: option.key)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `ingero ARGUMENTS`; returns exit code, standard output and standard error."""
    return partial(run_ingero, monkeypatch, capsys)


@pytest.fixture(autouse=True)
def nobodys_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither variables nor files of whoever runs the tests have a part in them."""
    for name in [name for name in os.environ if name.startswith("INGERO_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(config_file, "_SYSTEM_FILE", tmp_path / "etc" / FILE_NAME)
    monkeypatch.setenv("INGERO_CONFIG", str(tmp_path / "empty.yaml"))
    (tmp_path / "empty.yaml").touch()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Makes a text the configuration file."""

    def make(text: str) -> Path:
        path = tmp_path / FILE_NAME
        path.write_text(text)
        monkeypatch.setenv("INGERO_CONFIG", str(path))
        return path

    return make


def uncommented(text: str) -> str:
    """The example with every option in force."""
    names = "|".join({option.name for option in ALL_OPTIONS})
    return re.sub(rf"^( *)# ((?:{names}): .*\n)\n?$", r"\1\2", text, flags=re.MULTILINE)


def line_of(option: Option, value: str) -> str:
    """The option in the file."""
    return f"{option.section}:\n  {option.name}: {value}\n" if option.section else f"{option.name}: {value}\n"


def is_valid(text: str) -> bool:
    """What an editor says of a file."""
    return bool(jsonschema.Draft202012Validator(schema()).is_valid(yaml.safe_load(text)))


def test_the_example_holds_every_option_and_nothing_else() -> None:
    entries, faults = look_through_text(uncommented(example()))
    assert faults == []
    assert [entry.option for entry in entries] == list(ALL_OPTIONS)


def look_through_text(text: str) -> tuple[list[config_file.Entry], list[IngeroError]]:
    path = Path(os.environ["INGERO_CONFIG"]).with_name("looked-at.yaml")
    path.write_text(text)
    return parse_config(path)


def test_the_values_of_the_example_can_be_used() -> None:
    entries, _ = look_through_text(uncommented(example()))
    for entry in entries:
        if entry.option.name != "pid":  # whose processes are not there
            entry.option.parse(entry.text)


def test_the_example_as_it_is_sets_nothing() -> None:
    assert look_through_text(example()) == ([], [])


def test_the_example_is_what_its_schema_describes() -> None:
    assert is_valid(example())
    assert is_valid(uncommented(example()))


@EVERY_OPTION
def test_every_option_has_an_entry_in_the_schema(option: Option) -> None:
    described = schema()["properties"]
    entry = (described[option.section]["properties"] if option.section else described)[option.name]
    assert entry["description"] == option.help


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


# What the reader takes or refuses by its keys, the schema takes or refuses, too.
@pytest.mark.parametrize(
    "text",
    [
        "max-db: 2g", "max_db: 2g", "io: off", "no-io: true", "no_io: 'yes'", "pid: [1, 2]", "node: 7",
        "update_check: true", "dashboard:\n  addr: 0.0.0.0:8080\n  host: [a, b]", "fleet:\n  nodes: gpu[001-512]",
        "dashboard:", "", "max-dp: 2g", "io:", "dashboard: x", "dashboard:\n  adr: x", "fleet:\n  max-db: 1g",
        "addr: :8080", "- io", "dashboard:\n  token: abc", "io: {a: b}", "no-db: true", "mcp:\n  tls-cert: [a, b]",
        "trace:\n  io: false",
    ],
)  # fmt: skip
def test_the_schema_agrees_with_the_reader(text: str, write: Write) -> None:
    path = write(text)
    try:
        entries = read_config(path)
    except ConfigError:
        assert not is_valid(text)
    else:
        assert is_valid(text) or (text == "" and entries == [])


@pytest.mark.parametrize(
    ("text", "complaint", "hint"),
    [
        ("dashboard:\n  adr: x\n", "line 2: there is no option 'dashboard.adr'", "perhaps addr"),
        ("dashbord:\n  addr: x\n", "line 1: there is no option 'dashbord'", "perhaps dashboard"),
        ("addr: x\n", "line 1: there is no option 'addr'", "it belongs below dashboard:"),
        ("mcp:\n  max-db: 1g\n", "line 2: there is no option 'mcp.max-db'", "it belongs at the top level of the file"),
        ("dashboard:\n  token: hunter2\n", "line 2: there is no option 'dashboard.token'", "secrets stand in files"),
        ("dashboard: 8080\n", "line 1: dashboard is a section", "write options below dashboard:"),
        ("dashboard:\n  addr: a:1\n  addr: b:1\n", "line 3: dashboard.addr appears twice", "keep one"),
        ("fleet:\n  ca-cert: [a, b]\n", "line 2: fleet.ca-cert is one file", "name one"),
        ("pid: []\n", "line 1: pid has no value", "give it one"),
        ("? [a]\n: b\n", "line 1: a plain value was expected", "each line"),
        ("dashboard:\n  ? {a: b}\n  : c\n", "line 2: a plain value was expected", "each line"),
        ('node: "\\UFFFFFFFF"\n', "cannot be read", "name another"),
        ("node: &a [*a]\n", "a plain value was expected", "each line"),
        ("a: " + "[" * 2000, "nested too deeply|expected", "each line"),
    ],
)
def test_a_key_that_nobody_has_comes_with_what_was_meant(text: str, complaint: str, hint: str, write: Write) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        read_config(write(text))
    assert hint in caught.value.hint
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet=":-[]{}&*!?|>'\"#%@,\\Ux0 \n\tdb", max_size=60))
def test_whatever_stands_in_the_file_is_read_or_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with suppress(ConfigError):
        read_config(tmp_path / FILE_NAME)


def test_no_password_of_an_address_is_shown(run: Run, write: Write) -> None:
    for line in ("otlp: me:hunter2@collector:4318", "otlp: hunter2@collector:4318", "prometheus: a:hunter2@b:1",
                 "update-url: https://me:hunter2@mirror.example/"):  # fmt: skip
        write(f"{line}\n")
        for arguments in (("config", "show"), ("config", "check")):
            code, out, err = run(*arguments)
            assert code in (1, 2)
            assert "hunter2" not in out + err


def test_a_file_without_end_is_not_read(write: Write) -> None:
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        read_config(write("#" * (1 << 20) + "\nio: false\n"))


def test_a_file_that_may_not_be_read_comes_with_the_way_out(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("io: false\n")

    def refuse(*_: object) -> None:  # root, as which tests may run, reads everything
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match="Permission denied") as caught:
        read_config(path)
    assert f"sudo chmod a+r {path}" in caught.value.hint


def test_the_file_of_the_current_folder_is_not_read(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / FILE_NAME).write_text("db: /somebody/elses.db\n")
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.delenv("INGERO_CONFIG")
    monkeypatch.setattr("ingero.cli.config.command.invoking_user", lambda *_, **__: _owner(tmp_path / "home"))
    code, out, err = run("config", "path")
    assert (code, out) == (1, "")
    assert str(tmp_path / "home/.config/ingero" / FILE_NAME) in err


def _owner(home: Path) -> Any:
    return type("Owner", (), {"home": home, "uid": 1, "gid": 1})


def test_an_option_of_another_command_is_taken_by_flag_variable_and_file(write: Write) -> None:
    write("dashboard:\n  addr: file:1\n  host: [a, b]\n  no-tls: true\n  token-file: ~/t\n")
    environ = {"INGERO_CONFIG": os.environ["INGERO_CONFIG"]}

    def values(more: dict[str, str] | None = None, **flags: str) -> dict[str, Any]:
        return resolve_section("dashboard", flags, {**environ, **(more or {})}, uid=os.getuid())

    assert values()["addr"] == Address("file", 1)
    assert values({"INGERO_DASHBOARD_ADDR": "variable:2"})["addr"] == Address("variable", 2)
    assert values({"INGERO_DASHBOARD_ADDR": "variable:2"}, addr=":3")["addr"] == Address("127.0.0.1", 3)
    found = values()
    assert (found["host"], found["no_tls"], found["tls_cert"]) == (("a", "b"), True, None)
    assert found["token_file"].is_absolute()
    assert values({"INGERO_DASHBOARD_TOKEN": "x" * 16})["token_file"] is None  # the environment beats the file


def test_a_stronger_source_settles_whether_there_is_tls(write: Write) -> None:
    write("dashboard:\n  tls-cert: a.pem\n  tls-key: a.key\n")
    environ = {"INGERO_CONFIG": os.environ["INGERO_CONFIG"]}
    found = resolve_section("dashboard", {"no_tls": "true"}, environ, uid=os.getuid())
    assert (found["no_tls"], found["tls_cert"], found["tls_key"]) == (True, None, None)
    write("dashboard:\n  no-tls: true\n")
    found = resolve_section("dashboard", {"tls_cert": "b.pem", "tls_key": "b.key"}, environ, uid=os.getuid())
    assert (found["no_tls"], found["tls_cert"]) == (False, Path("b.pem"))


def test_readers_read_the_database_that_the_file_names(write: Write) -> None:
    path = write("db: /srv/one.db\n")
    environ = {"INGERO_CONFIG": str(path)}
    named = partial(recording_path.recording_path, uid=os.getuid())
    assert named(None, environ) == Path("/srv/one.db")
    assert named(Path("/other.db"), environ) == Path("/other.db")
    assert named(None, {**environ, "INGERO_DB": "/variable.db"}) == Path("/variable.db")


@pytest.mark.parametrize("name", ["explain", "query", "export", "dashboard", "mcp"])
def test_a_fault_in_the_file_ends_the_command_with_its_line(name: str, run: Run, write: Write) -> None:
    write("max-dp: 1g\n")
    arguments = {"export": ["--format", "pprof", "-o", "-"], "query": ["SELECT 1"]}.get(name, [])
    code, out, err = run(name, *arguments)
    assert (code, out) == (2, "")
    assert "line 1: there is no option 'max-dp'" in err
    assert "perhaps max-db" in err


@pytest.mark.parametrize("name", SECTIONS)
def test_options_of_a_section_are_options_of_its_commands(name: str) -> None:
    command = cli.get_command(click.Context(cli), "query" if name == "fleet" else name)
    assert command is not None
    found = {option.opts[0].lstrip("-"): option for option in command.params if isinstance(option, click.Option)}
    for option in SECTIONS[name]:
        assert (found[option.name].help or "").startswith(option.help)


def test_show_says_where_each_value_comes_from(run: Run, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("max-db: 2g\nio: false\nno-tcp: true\ndashboard:\n  addr: :9\n")
    monkeypatch.setenv("INGERO_MAX_CPU", "7%")
    code, out, _ = run("config", "show")
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in out.splitlines()}
    assert code == 0
    assert rows["max-db"] == ["2g", f"{path}, line 1: max-db"]
    assert rows["tcp"] == ["false", f"{path}, line 3: no-tcp"]
    assert rows["dashboard.addr"] == [":9", f"{path}, line 5: dashboard.addr"]
    assert rows["max-cpu"] == ["7%", "INGERO_MAX_CPU"]
    assert rows["max-overhead"] == ["2%", "default"]
    assert rows["node"] == [os.uname().nodename, "default"]
    assert list(rows) == [option.key for option in (*OPTIONS, *GENERAL, *sum(SECTIONS.values(), ()))]


def test_show_tells_what_a_command_line_would_have(run: Run, write: Write) -> None:
    path = write("max-db: 2g\nsampling-rate: 5\n")
    code, out, _ = run("config", "show", "trace", "--max-db", "3g", "--no-io", "--record-all")
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in out.splitlines()}
    assert code == 0
    assert rows["max-db"] == ["3g", "--max-db"]
    assert rows["io"] == ["false", "--io"]
    assert rows["sampling-rate"] == ["0", "default"]  # what a stronger option overrules is not there
    assert str(path) not in out
    code, out, _ = run("config", "show", "dashboard", "--addr", ":7", "--no-tls")
    assert (code, "dashboard.no-tls" in out, ":7" in out, "--no-tls" in out) == (0, True, True, True)


def test_show_prints_no_secret(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRET_VARIABLES:
        monkeypatch.setenv(name, "hunter2hunter2hunter2")
    for arguments in (("config", "show"), ("config", "show", "--json")):
        code, out, err = run(*arguments)
        assert code == 0
        assert "hunter2" not in out + err
        assert all(name in out for name in SECRET_VARIABLES)


def test_show_refuses_what_a_command_would_refuse(run: Run, write: Write) -> None:
    write("max-db: ten\n")
    code, out, err = run("config", "show")
    assert (code, out) == (2, "")
    assert "line 1: max-db: 'ten' is not a size" in err
    code, _, err = run("config", "show", "frobnicate")
    assert (code, "config show takes trace" in err) == (2, True)


def test_show_as_json_has_every_setting(run: Run) -> None:
    _, out, _ = run("config", "show", "--json")
    found = json.loads(out)
    assert [row["key"] for row in found["settings"]] == [option.key for option in ALL_OPTIONS]


def test_check_says_every_fault_in_the_order_of_the_file(run: Run, write: Write) -> None:
    write("max-db: ten\nfrob: 1\ndashboard:\n  addr: nowhere\n  no-tls: maybe\n")
    code, out, _ = run("config", "check")
    lines = [int(number) for number in re.findall(r", line (\d+)", out)]
    assert (code, lines) == (1, [1, 2, 4, 5])
    assert out.count("  hint: ") == 4


def test_check_says_what_contradicts_itself(run: Run, write: Write) -> None:
    write("heartbeat: 10s\n")
    code, out, _ = run("config", "check")
    assert code == 1
    assert "has no effect without --deadband" in out


def test_check_of_a_good_file_and_of_a_named_one(run: Run, write: Write, tmp_path: Path) -> None:
    write("max-db: 2g\n")
    assert run("config", "check")[0] == 0
    (tmp_path / "other.yaml").write_text("max-dp: 2g\n")
    code, out, _ = run("config", "check", str(tmp_path / "other.yaml"))
    assert (code, "max-dp" in out) == (1, True)


def test_path_names_the_file_that_is_read(run: Run, write: Write) -> None:
    path = write("")
    assert run("config", "path") == (0, f"{path}\n", "")


def test_example_and_schema_are_those_of_the_repository(run: Run) -> None:
    assert run("config", "example")[1] == (ROOT / "configs/ingero.yaml").read_text()
    assert json.loads(run("config", "schema")[1]) == json.loads((ROOT / "configs/ingero.schema.json").read_text())
