"""Makes click options of the option table; every switch can be written as --x, --x=false and --no-x."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from ingero.cli.config.option_table import OPTIONS, SECTIONS, Option
from ingero.cli.config.settings import resolve_section
from ingero.cli.config.value_words import starting_with

if TYPE_CHECKING:
    from click.parser import _OptionParser

_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Switch(click.Option):
    """A switch, on or off; the last spelling on the command line wins."""

    def __init__(self, name: str, *, is_on: bool, help_text: str) -> None:
        super().__init__([f"--{name}"], is_flag=False, flag_value="true", metavar="", help=help_text)
        self._opposite = [] if name.startswith("no-") else [f"--no-{name}"]
        self.secondary_opts = self._opposite if is_on else []  # for the help

    def add_to_parser(self, parser: _OptionParser, ctx: click.Context) -> None:
        """Adds both spellings."""
        super().add_to_parser(parser, ctx)
        if self._opposite:
            parser.add_option(self, self._opposite, self.name, action="store_const", const="false")


class _Listed(click.Option):
    """An option that may be repeated; its values are joined by the option's separator."""

    def __init__(self, declarations: list[str], *, separator: str, **rest: Any) -> None:
        super().__init__(declarations, multiple=True, **rest)
        self._separator = separator

    def process_value(self, ctx: click.Context, value: Any) -> str | None:
        """The joined values; None where the option was not given."""
        values = super().process_value(ctx, value)
        return self._separator.join(values) if values else None


def click_options() -> list[click.Parameter]:
    """A click option for each row of the table."""
    return [*map(_click_option, OPTIONS)]


def section_options(section: str, *, without: Collection[str]) -> list[click.Parameter]:
    """A click option for each row of a section of ingero.yaml, for a command that has another section."""
    return [_click_option(option) for option in SECTIONS[section] if option.name not in without]


def configured(section: str) -> Callable[[_Command], _Command]:
    """Adds the options of a section of ingero.yaml; the command gets their resolved values."""
    options = SECTIONS[section]

    def decorate(command: _Command) -> _Command:
        def wrapped(**values: Any) -> Any:
            flags = {option.field: values.pop(option.field) for option in options}
            return command(**resolve_section(section, flags, os.environ, uid=os.getuid()), **values)

        wrapped.__doc__ = command.__doc__
        given = getattr(command, "__click_params__", [])
        wrapped.__click_params__ = [*given, *map(_click_option, reversed(options))]  # type: ignore[attr-defined]  # click's own
        return wrapped  # type: ignore[return-value]  # click calls it with names

    return decorate


def _click_option(option: Option) -> click.Option:
    help_text = option.help
    if option.default and not option.is_switch:
        help_text += f" [default: {option.default}]"
    if option.is_switch:
        return _Switch(option.name, is_on=option.default == "true", help_text=help_text)
    shown: dict[str, Any] = {"metavar": option.metavar, "help": help_text, **_completed(option)}
    if option.name in ("pid", "cuda-lib", "host", "relay"):
        return _Listed([f"--{option.name}"], separator=option.separator, **shown)
    return click.Option([f"--{option.name}"], **shown)


def _completed(option: Option) -> dict[str, Any]:
    """The click arguments with which a shell completes the value: files, or words."""
    if option.metavar in ("F", "PATH"):
        return {"type": click.Path()}
    if "|" in option.metavar:
        return {"shell_complete": starting_with(option.metavar.split("|"))}
    return {}
