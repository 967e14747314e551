"""Click's side of the option table: flags of `ingero trace`, with every switch as --x, --x=false and --no-x."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from ingero.cli.option_table import OPTIONS, Option
from ingero.cli.value_words import starting_with

if TYPE_CHECKING:
    from click.parser import _OptionParser


class _Switch(click.Option):
    """On or off. The last spelling on the command line wins."""

    def __init__(self, name: str, *, is_on: bool, help_text: str) -> None:
        super().__init__([f"--{name}"], is_flag=False, flag_value="true", metavar="", help=help_text)
        self._opposite = [f"--no-{name}"]
        self.secondary_opts = self._opposite if is_on else []  # for the help

    def add_to_parser(self, parser: _OptionParser, ctx: click.Context) -> None:
        """Both spellings."""
        super().add_to_parser(parser, ctx)
        parser.add_option(self, self._opposite, self.name, action="store_const", const="false")


class _Listed(click.Option):
    """An option that may be repeated: its values are joined as the option's text writes several."""

    def __init__(self, declarations: list[str], *, separator: str, **rest: Any) -> None:
        super().__init__(declarations, multiple=True, **rest)
        self._separator = separator

    def process_value(self, ctx: click.Context, value: Any) -> str | None:
        """One text; None where the option was not given."""
        values = super().process_value(ctx, value)
        return self._separator.join(values) if values else None


def click_options() -> list[click.Parameter]:
    """One click option per row of the table."""
    return [*map(_click_option, OPTIONS)]


def _click_option(option: Option) -> click.Option:
    help_text = option.help
    if option.default and not option.is_switch:
        help_text += f" [default: {option.default}]"
    if option.is_switch:
        return _Switch(option.name, is_on=option.default == "true", help_text=help_text)
    shown: dict[str, Any] = {"metavar": option.metavar, "help": help_text, **_completed(option)}
    if option.name in ("pid", "cuda-lib", "host"):
        return _Listed([f"--{option.name}"], separator=option.separator, **shown)
    return click.Option([f"--{option.name}"], **shown)


def _completed(option: Option) -> dict[str, Any]:
    """What a shell offers as its value: files, or one of some words."""
    if option.metavar in ("F", "PATH"):
        return {"type": click.Path()}
    if "|" in option.metavar:
        return {"shell_complete": starting_with(option.metavar.split("|"))}
    return {}
