"""The command line: commands are imported when they are used, so that the small ones start fast."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from typing import TYPE_CHECKING, ClassVar, NoReturn

import rich_click as click

from ingero import __version__
from ingero.cli.command_group import CommandGroup, color_option, complete, usage_texts
from ingero.cli.output import EXIT_CLOSED_PIPE, drop_output, echo
from ingero.errors import TRACEBACK_VARIABLE, IngeroError
from ingero.serve.text.styles import Style

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

EXIT_ERROR, EXIT_INTERRUPTED = 2, 130
# The program that completion scripts call, and the variable with which they ask for completions.
PROGRAM, COMPLETE_VARIABLE = "ingero", "_INGERO_COMPLETE"


class LazyGroup(CommandGroup):
    """A group whose commands are imported on demand."""

    # name -> (module, one-line help for the list of commands)
    commands_by_name: ClassVar[dict[str, tuple[str, str]]] = {
        "check": ("ingero.cli.check.command", "Check whether this host can be traced, and how to fix what is missing."),
        "trace": ("ingero.cli.trace.command", "Record what GPU processes do, and show it live."),
        "explain": ("ingero.cli.explain", "Explain what went wrong in a recording, and what caused it."),
        "compare": ("ingero.cli.compare", "Compare two recordings: before and after a fix."),
        "query": ("ingero.cli.query", "Query a recording with SQL, or list its calls."),
        "import": (
            "ingero.cli.import_profiles",
            "Import profiles of PyTorch, JAX, Nsight Systems or RPD as a recording.",
        ),
        "copy": ("ingero.cli.copy", "Copy a recording, even while it is being written."),
        "merge": ("ingero.cli.merge.command", "Merge the recordings of several nodes into one."),
        "export": ("ingero.cli.export", "Export a recording to Perfetto, Chrome, flame graphs or pprof."),
        "mcp": ("ingero.cli.mcp", "Serve a recording to AI assistants (MCP)."),
        "demo": ("ingero.cli.demo", "Demonstrate causes of lost GPU time, with the verdict on each."),
        "dashboard": ("ingero.cli.dashboard", "Show a recording in the browser."),
        "service": ("ingero.cli.service.command", "Run the agent and the dashboard as systemd services."),
        "certs": ("ingero.cli.certs", "Create TLS certificates for nodes and their clients."),
        "config": ("ingero.cli.config.command", "Show and check the settings: ingero.yaml, environment and defaults."),
        "fleet": ("ingero.cli.fleet.command", "Collect what many nodes recorded around an incident."),
        "completion": ("ingero.cli.completion", "Print the shell completion script for bash, zsh or fish."),
        "version": ("ingero.cli.version", "Show version, commit and build date."),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """The names in the order in which users need them."""
        return list(self.commands_by_name)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        """Imports a command."""
        if name not in self.commands_by_name:
            return None
        command: click.Command = importlib.import_module(self.commands_by_name[name][0]).command
        complete(command, name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.commands_by_name.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Commands and options for a shell, without importing the commands."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415  # only a shell asks for it

        found = [
            CompletionItem(name, help=text)
            for name, (_, text) in self.commands_by_name.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, params=[color_option()])
@click.version_option(__version__, "--version", prog_name="ingero")
def cli() -> None:
    """Find out why a GPU is waiting: which call stalled, for how long, why, and from which line of Python."""


def main() -> None:
    """Entry point: errors end with their hint and exit code 2."""
    try:
        _run()
    finally:
        if sys.stderr is not None and sys.stderr.isatty():  # else nobody reads a notice, and what says it is not loaded
            _print_update_notice()


def _print_update_notice() -> None:
    from ingero.cli.update import notice as update_notice  # noqa: PLC0415  # reads ingero.yaml, which takes some commands longer than they

    if update_notice.is_interactive(os.environ, (sys.stdin, sys.stdout, sys.stderr)):
        update_notice.print_notice(os.environ, uid=os.getuid())


def _run() -> None:
    try:
        cli(standalone_mode=False, complete_var=COMPLETE_VARIABLE)
    except IngeroError as error:
        _say_error(str(error), error.hint)
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        sys.exit(EXIT_ERROR)
    except click.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # of click 8.2 on: its message is the help
            error.show()
        else:
            _say_error(*usage_texts(error))
        sys.exit(EXIT_ERROR)
    except click.Abort:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        drop_output()
        sys.exit(EXIT_CLOSED_PIPE)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            _fail_by_a_bug()
        drop_output()
        _say_error(
            f"cannot write {error.filename or 'the output'}: {error.strerror}",
            "make room (`df -h` shows which disk is full), or write elsewhere",
        )
        sys.exit(EXIT_ERROR)
    except Exception:
        _fail_by_a_bug()


def _say_error(what: str, hint: str) -> None:
    """Prints on standard error what failed, and the hint."""
    echo((("error:", Style.FAILED), (f" {what}", None)), err=True)
    if hint:
        echo((("  hint:", Style.HEADING), (f" {hint}", None)), err=True)


def _fail_by_a_bug() -> NoReturn:
    traceback.print_exc()
    sys.exit(EXIT_ERROR)  # not 1, which would be read as an answer such as "an incident was found"


if __name__ == "__main__":
    main()
