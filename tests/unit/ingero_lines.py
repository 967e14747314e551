"""The command lines of documents: found in shell text, and parsed by the real parser without being run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click

from ingero.cli.main import cli

_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ENDS = ("|", "||", "&&", ";", ">", ">>", "<", "&")
_PREFIXES = re.compile(r"sudo|-E|env|exec|[A-Z_]+=.*")  # before the program's name


def shell_blocks(markdown: str) -> list[str]:
    """The text of each shell block of a document."""
    return _BLOCK.findall(markdown)


def commands(shell_text: str) -> Iterator[list[str]]:
    """The simple commands of a piece of shell, as words, without what stands before the program's name."""
    for line in shell_text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(re.sub(r"\$\([^()]*\)", "SUBSTITUTED", line), posix=True, punctuation_chars="|&;<>")
        lexer.commenters = "#"
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word not in _ENDS:
                words += [word] if words or not _PREFIXES.fullmatch(word) else []
            elif words:
                yield words
                words = []


def ingero_lines(shell_text: str) -> Iterator[list[str]]:
    """The arguments of each call of ingero in a piece of shell."""
    for words in commands(shell_text):
        if words[0] == "ingero":
            yield words[1:]


def parse(arguments: list[str]) -> None:
    """Parses a command line as `ingero` does, and runs nothing.

    Raises:
        click.UsageError: there is no such command or option, or a value is none of those possible.
    """
    command = cli.get_command(click.Context(cli), arguments[0])
    if command is None:
        raise click.UsageError(f"no such command {arguments[0]!r}")
    command.make_context(arguments[0], list(arguments[1:]), help_option_names=["-h", "--help"])
