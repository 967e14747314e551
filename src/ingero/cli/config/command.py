"""`ingero config`: shows the settings of ingero.yaml, environment and defaults, and the errors in ingero.yaml."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import rich_click as click

from ingero.cli.command_group import CommandGroup
from ingero.cli.config.file import CONFIG_VARIABLE, config_paths, find_config, parse_config
from ingero.cli.config.given import Given, given_values, value_of
from ingero.cli.config.option_table import ALL_OPTIONS, GENERAL, OPTIONS, SECTIONS, Option
from ingero.cli.config.schema import example as example_text
from ingero.cli.config.schema import schema as schema_object
from ingero.cli.config.settings import default_node, refuse_contradictions
from ingero.cli.config.value_words import starting_with
from ingero.cli.output import echo, echo_json
from ingero.cli.recording_path import recording_path
from ingero.errors import IngeroError
from ingero.store.opening.locations import invoking_user

EXIT_FAULTS = 1
TRACE = "trace"
# Variables that hold secrets; their values are never shown.
SECRET_VARIABLES = (
    "INGERO_DASHBOARD_TOKEN", "INGERO_MCP_TOKEN", "INGERO_FLEET_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
)  # fmt: skip
_COMMANDS = (TRACE, *(name for name in SECTIONS if name != "fleet"))


class ConfigCommandError(IngeroError):
    """There are no such settings."""


@click.group("config", cls=CommandGroup)
def command() -> None:
    """Show and check the settings: ingero.yaml, environment and defaults.

    ingero.yaml holds options of every command. It is the file named by --config or INGERO_CONFIG, else
    ~/.config/ingero/ingero.yaml, else /etc/ingero/ingero.yaml.
    """


@command.command("show", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.argument("line", nargs=-1, type=click.UNPROCESSED, shell_complete=starting_with(_COMMANDS))
def show(as_json: bool, line: tuple[str, ...]) -> None:
    """Show every setting and where it comes from. Secrets are not shown.

    With a command and its options (config show trace --max-db 2g): the settings that it would use.
    """
    rows = list(_rows(line, os.environ, uid=os.getuid()))
    secrets = [name for name in SECRET_VARIABLES if os.environ.get(name)]
    if as_json:
        keys = ("key", "value", "origin")
        echo_json({"version": 1, "settings": [dict(zip(keys, row, strict=True)) for row in rows], "secrets": secrets})
        return
    widths = [max(len(row[at] or "-") for row in rows) for at in (0, 1)]
    for key, value, origin in rows:
        echo(f"{key:{widths[0]}}  {value or '-':{min(widths[1], 40)}}  {origin}")
    for name in secrets:
        echo(f"{name} is set (not shown)")


@command.command("check")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
def check(file: Path | None) -> None:
    """Check ingero.yaml for unknown keys, invalid values and contradictory options.

    Exit code 0: no errors, 1: errors.
    """
    path = _file(str(file) if file else None)
    if path is None:
        echo("there is no ingero.yaml; defaults are used")
        return
    faults = list(_faults(path))
    for fault in faults:
        echo(str(fault))
        if fault.hint:
            echo(f"  hint: {fault.hint}")
    if faults:
        sys.exit(EXIT_FAULTS)
    echo(f"{path}: nothing is wrong in it")


@command.command("path")
def path_() -> None:
    """Print the path of the file that is read. Without one: print where it is searched for, exit code 1."""
    path = _file(None)
    if path is not None:
        echo(str(path))
        return
    for place in config_paths(invoking_user(os.environ, uid=os.getuid()).home):
        echo(f"not there: {place}", err=True)
    sys.exit(EXIT_FAULTS)


@command.command("example")
def example() -> None:
    """Print an ingero.yaml with every option as a comment, with its default."""
    click.echo(example_text(), nl=False)


@command.command("schema")
def schema() -> None:
    """Print the JSON Schema of ingero.yaml, with which editors complete and check it."""
    echo_json(schema_object())


def _file(named: str | None) -> Path | None:
    home = invoking_user(os.environ, uid=os.getuid()).home
    return find_config(named or os.environ.get(CONFIG_VARIABLE), home)


def _faults(path: Path) -> Iterator[IngeroError]:
    """The errors in a file, in the order of its lines."""
    entries, faults = parse_config(path)
    for entry in entries:
        try:
            entry.option.parse(entry.text)
        except IngeroError as error:
            faults.append(IngeroError(f"{entry.origin}: {error}", hint=error.hint))
    yield from sorted(faults, key=_line_of)
    if not faults:
        try:
            refuse_contradictions(given_values(OPTIONS, {}, {}, path), {})
        except IngeroError as error:
            yield error


def _line_of(fault: IngeroError) -> int:
    found = str(fault).partition(", line ")[2].partition(":")[0]
    return int(found) if found.isdecimal() else 0


def _rows(line: tuple[str, ...], environ: Mapping[str, str], *, uid: int) -> Iterator[tuple[str, str | None, str]]:
    """Key, value and origin of each setting; only those of a command where `line` names one."""
    if not line:
        path = _file(None)
        for options in (OPTIONS, GENERAL, *SECTIONS.values()):
            yield from _setting_rows(options, given_values(options, {}, environ, path), environ, uid=uid)
        return
    name, *arguments = line
    if name not in _COMMANDS:
        near = difflib.get_close_matches(name.lower(), _COMMANDS, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        hint = f"{meant}config show takes {', '.join(_COMMANDS)}"
        raise ConfigCommandError(f"ingero.yaml has no settings of {name!r}", hint=hint)
    flags = _parsed(name, arguments)
    options = OPTIONS if name == TRACE else SECTIONS[name]
    given = given_values(options, flags, environ, _file(flags.get("config")))
    if name == TRACE:
        refuse_contradictions(given, environ)
    yield from _setting_rows(options, given, environ, uid=uid)


def _setting_rows(
    options: tuple[Option, ...], given: Mapping[str, Given], environ: Mapping[str, str], *, uid: int
) -> Iterator[tuple[str, str | None, str]]:
    for option in options:
        value = given.get(option.name)
        value_of(option, value)  # raises where the value cannot be used
        if value is not None:
            yield option.key, value.text, value.origin
        else:
            yield option.key, option.default or _computed(option, environ, uid=uid), "default"


def _computed(option: Option, environ: Mapping[str, str], *, uid: int) -> str | None:
    """A default that depends on this machine and its user."""
    if option.key == "db":
        return str(recording_path(None, environ, uid=uid))
    return default_node(environ) if option.key == "node" else None


def _parsed(name: str, arguments: list[str]) -> dict[str, Any]:
    """The flags of a command line, parsed by the command itself without running it."""
    from ingero.cli.main import cli  # noqa: PLC0415  # which imports this module

    parent = click.Context(cli, info_name="ingero", **cli.context_settings)
    found = cli.get_command(parent, name)
    assert found is not None  # _COMMANDS
    context = found.make_context(name, arguments, parent=parent)
    known = {option.field for option in ALL_OPTIONS} | {"config"}
    return {field: value for field, value in context.params.items() if field in known and not isinstance(value, bool)}
