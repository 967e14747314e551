"""Options as text, each from the strongest of its sources: flag > environment > ingero.yaml > default."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ingero.cli.config.file import opposite, read_config
from ingero.cli.config.option_table import TRUE_WORDS, Option, OptionError
from ingero.errors import IngeroError

_TOKEN_FILE, _FILE_SUFFIX = "token-file", "_FILE"
_WITHOUT_TLS, _FOR_TLS = "no-tls", ("tls-cert", "tls-key", "client-ca")


class Rank(enum.IntEnum):
    """The sources of a value; the highest wins."""

    DEFAULT = 0
    FILE = 1
    ENVIRONMENT = 2
    FLAG = 3


@dataclass(frozen=True, slots=True)
class Given:
    """A value as text, with its source in the user's words."""

    text: str
    origin: str
    rank: Rank

    @property
    def is_on(self) -> bool:
        """Whether the text turns a switch on."""
        return self.text.lower() in TRUE_WORDS


def given_values(
    options: Iterable[Option], flags: Mapping[str, str | None], environ: Mapping[str, str], path: Path | None
) -> dict[str, Given]:
    """The given values of options of one section, by name. flags: texts by field. path: the configuration file.

    Raises:
        IngeroError: the file cannot be used.
    """
    wanted = {option.key: option for option in options}
    from_file = [
        (entry.option.name, Given(entry.text, entry.origin, Rank.FILE))
        for entry in (read_config(path) if path else ())
        if entry.option.key in wanted
    ]
    given = dict((*from_file, *_from_environment(wanted.values(), environ), *_from_flags(wanted.values(), flags)))
    _drop_overruled(wanted.values(), given, environ)
    return given


def value_of(option: Option, given: Given | None) -> object:
    """The parsed value; None where nothing is given and there is no plain default.

    Raises:
        OptionError: the value cannot be used; the message names its source.
    """
    text, origin = (given.text, given.origin) if given else (option.default, "")
    if not given and not text:
        return None
    try:
        return option.parse(text)
    except IngeroError as error:
        raise OptionError(f"{origin}: {error}", hint=error.hint) from error


def _from_flags(options: Iterable[Option], flags: Mapping[str, str | None]) -> Iterator[tuple[str, Given]]:
    for option in options:
        text = flags.get(option.field)
        if text is not None:
            yield option.name, Given(text, f"--{option.name}", Rank.FLAG)


def _from_environment(options: Iterable[Option], environ: Mapping[str, str]) -> Iterator[tuple[str, Given]]:
    for option in options:
        off = option.variable.replace("INGERO_", "INGERO_NO_", 1)
        if option.is_switch and environ.get(off):  # an empty variable is one that is not set
            yield option.name, Given(opposite(environ[off], off), off, Rank.ENVIRONMENT)
        if environ.get(option.variable):
            yield option.name, Given(environ[option.variable], option.variable, Rank.ENVIRONMENT)


def _drop_overruled(options: Iterable[Option], given: dict[str, Given], environ: Mapping[str, str]) -> None:
    """Removes values of weaker sources that contradict another option on the same subject from a stronger source."""
    token_file = given.get(_TOKEN_FILE)
    if token_file and token_file.rank is Rank.FILE:
        [option] = [option for option in options if option.name == _TOKEN_FILE]
        if environ.get(option.variable.removesuffix(_FILE_SUFFIX)):  # the token itself
            del given[_TOKEN_FILE]
    plain = given.get(_WITHOUT_TLS)
    if plain is None or not plain.is_on:
        return
    tls_options = [name for name in _FOR_TLS if name in given]
    if any(given[name].rank > plain.rank for name in tls_options):
        del given[_WITHOUT_TLS]
        return
    for name in tls_options:
        if given[name].rank < plain.rank:
            del given[name]
