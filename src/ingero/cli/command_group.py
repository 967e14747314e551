"""The common parts of all commands: an example in the help, --color, and suggestions for mistyped names."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from typing import Any

import rich_click as click

from ingero.cli.examples import first_example
from ingero.errors import IngeroError
from ingero.program import command as own_command

_AUTO, _ALWAYS, _NEVER = "auto", "always", "never"
_COLOR = "--color"
EXAMPLE = "Example:"  # begins the last paragraph of a command's help


class UnknownCommandError(IngeroError):
    """There is no such command."""


class CommandGroup(click.RichGroup):
    """A group of commands."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The named command.

        Raises:
            UnknownCommandError: there is no such command; the hint names a similar one, if there is one.
        """
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            path = _path_of(ctx)
            near = difflib.get_close_matches(name.lower(), self.list_commands(ctx), n=1)
            hint = f"did you mean {own_command(*path, *near)}?" if near else f"{own_command(*path, '--help')} lists all"
            raise UnknownCommandError(f"there is no command {name!r}", hint=hint)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of that name, with the common parts added."""
        command = super().get_command(ctx, name)
        if command is not None:
            complete(command, *_path_of(ctx), name)
        return command


class Words(click.Choice):  # type: ignore[type-arg]  # generic since click 8.2 only
    """A choice of words; the error for another word suggests a similar one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The word.

        Raises:
            click.BadParameter: it is not one of the choices.
        """
        words = list(map(str, self.choices))
        if value in words:
            return value
        near = difflib.get_close_matches(str(value).lower(), words, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise click.BadParameter(f"{value!r} is not one of {', '.join(words)}{meant}", ctx, param)


class WholeNumber(click.ParamType):  # type: ignore[type-arg]  # as above
    """A whole number from minimum to maximum, which the help of the option describes."""

    name = "number"

    def __init__(self, minimum: int, maximum: int) -> None:
        self._minimum, self._maximum = minimum, maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number.

        Raises:
            click.BadParameter: it is not a number, or outside the bounds.
        """
        try:
            number = int(value)
        except ValueError:
            raise click.BadParameter(f"{value!r} is not a whole number", ctx, param) from None
        if number < self._minimum:
            raise click.BadParameter(f"{number} is less than {self._minimum}", ctx, param)
        if number > self._maximum:
            raise click.BadParameter(f"{number} is more than {self._maximum}", ctx, param)
        return number


def color_option(*, is_hidden: bool = False) -> click.Option:
    """The option --color. is_hidden: not in the help, because the help of the program describes it."""
    return click.Option(
        [_COLOR],
        type=Words((_AUTO, _ALWAYS, _NEVER)),
        metavar="WHEN",
        expose_value=False,
        is_eager=True,  # also of --help
        hidden=is_hidden,
        callback=_choose_color,
        help="Color the text output: auto (on a terminal), always or never. Default: auto, as NO_COLOR and FORCE_COLOR "
        "say.",
    )


def complete(command: click.Command, *path: str) -> None:
    """Adds --color and an example in the help to a command. path: the names that lead to it, its own included."""
    if any(_COLOR in parameter.opts for parameter in command.params):
        return
    command.params.append(color_option(is_hidden=True))
    if example := first_example(*path):
        command.epilog = "\n\n".join(filter(None, (command.epilog, f"{EXAMPLE} {example}")))


def usage_texts(error: click.ClickException) -> tuple[str, str]:
    """The message and the hint for a wrong command line."""
    context = getattr(error, "ctx", None)
    path = _path_of(context) if context is not None else ()
    described = f"{own_command(*path, '--help')} describes it"
    if isinstance(error, click.NoSuchOption):
        near = difflib.get_close_matches(error.option_name, _option_names(context), n=1)
        return f"there is no option {error.option_name}", f"did you mean {near[0]}?" if near else described
    message = " ".join(error.format_message().split()).rstrip(".")
    return message[:1].lower() + message[1:], described


def _choose_color(context: click.Context, _parameter: click.Parameter, when: str | None) -> None:
    """Sets FORCE_COLOR and NO_COLOR, by which all output of this process and its children is colored."""
    if when == _ALWAYS:
        os.environ["FORCE_COLOR"] = "1"
        os.environ.pop("NO_COLOR", None)
    elif when == _NEVER:
        os.environ["NO_COLOR"] = "1"
        os.environ.pop("FORCE_COLOR", None)
        if (of_help := getattr(context, "help_config", None)) is not None:
            of_help.color_system = None  # NO_COLOR alone leaves bold text in it


def _path_of(context: click.Context) -> tuple[str, ...]:
    """The names of commands that lead to a context, without the program's."""
    names: list[str] = []
    while context.parent is not None:
        names.insert(0, context.info_name or "")
        context = context.parent
    return tuple(names)


def _option_names(context: click.Context | None) -> Iterable[str]:
    parameters = context.command.get_params(context) if context is not None else ()
    options = (parameter for parameter in parameters if isinstance(parameter, click.Option))
    return [name for option in options for name in (*option.opts, *option.secondary_opts) if name.startswith("--")]
