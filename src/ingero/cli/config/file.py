"""Reads ingero.yaml: options of `trace` at its top level, those of other commands below the command's name.

Errors name their line. A file in the current folder is never read, because it may be another user's.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ingero.cli.config.option_table import GENERAL, OPTIONS, SECTIONS, Option, OptionError, parse_switch
from ingero.errors import IngeroError
from ingero.foreign_text import shell_word

if TYPE_CHECKING:
    import yaml

FILE_NAME = "ingero.yaml"
CONFIG_VARIABLE = "INGERO_CONFIG"
MAX_BYTES = 1 << 20
_SYSTEM_FILE = Path("/etc/ingero") / FILE_NAME
_BY_SECTION: dict[str, dict[str, Option]] = {
    "": {option.name: option for option in (*OPTIONS, *GENERAL)},
    **{section: {option.name: option for option in options} for section, options in SECTIONS.items()},
}
_SECRET = ("token", "password", "secret", "headers")  # names that users try, and that never stand in the file
_TOP_LEVEL = "trace"  # whose options have no section
_LINE_HINT = "each line is like  max-db: 10g"


class ConfigError(IngeroError):
    """A configuration file cannot be used."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting of the file. text: several values are joined by a separator. origin: file, line and key."""

    option: Option
    text: str
    origin: str


def config_paths(home: Path, system_file: Path | None = None) -> tuple[Path, Path]:
    """The possible paths of the file; only the first that exists is read."""
    return home / ".config" / "ingero" / FILE_NAME, system_file or _SYSTEM_FILE


def find_config(explicit: str | None, home: Path, system_file: Path | None = None) -> Path | None:
    """The file named, else ~/.config/ingero/ingero.yaml, else /etc/ingero/ingero.yaml; None where none exists.

    Only one file is read, so that a setting has one place.

    Raises:
        ConfigError: the file named does not exist.
    """
    if explicit is not None:
        path = Path(explicit).absolute()
        if not path.is_file():
            raise ConfigError(f"no configuration file at {path}", hint="name an existing file with --config F")
        return path
    return next((path for path in config_paths(home, system_file) if path.is_file()), None)


def read_config(path: Path) -> list[Entry]:
    """The settings of a file.

    Raises:
        ConfigError: it is no YAML, holds more than keys with plain values, or a key is unknown.
    """
    entries, faults = parse_config(path)
    if faults:
        raise faults[0]
    return entries


def parse_config(path: Path) -> tuple[list[Entry], list[IngeroError]]:
    """The usable settings of a file, and all errors in its keys; values are not checked.

    Raises:
        ConfigError: the file cannot be read, or is no YAML.
    """
    entries: dict[str, Entry] = {}
    faults: list[IngeroError] = []
    for key, value, section in _nodes(path, faults):
        origin = f"{path}, line {key.start_mark.line + 1}"
        try:
            entry = _entry(key, value, section, origin)
            if entry.option.key in entries:
                raise ConfigError(f"{origin}: {_name(key, section)} appears twice", hint="keep one of them")
            entries[entry.option.key] = entry
        except IngeroError as error:
            faults.append(error)
    return list(entries.values()), faults


def _compose(path: Path) -> yaml.Node | None:
    import yaml  # noqa: PLC0415  # takes 30 ms, and most runs have no such file

    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ConfigError(f"{path} is larger than 1 MiB", hint="name another file with --config F")
        return yaml.compose(text.decode(), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}, line {line}: {error.problem}", hint=_LINE_HINT) from error
    except RecursionError:
        raise ConfigError(f"{path}: it is nested too deeply", hint=_LINE_HINT) from None
    except PermissionError as error:
        hint = f"it holds no secret: sudo chmod a+r {shell_word(path)}; or name another one in {CONFIG_VARIABLE}"
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
    except (OSError, ValueError, OverflowError, yaml.YAMLError) as error:  # of escapes that are no character, too
        raise ConfigError(f"{path} cannot be read: {error}", hint="name another file with --config F") from error


def _nodes(path: Path, faults: list[IngeroError]) -> Iterator[tuple[yaml.Node, yaml.Node, str]]:
    """The key, value and section of each setting. Sections cannot be nested."""
    import yaml  # noqa: PLC0415  # as above

    root = _compose(path)
    if root is None:  # an empty file
        return
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path}, line 1: a list of options was expected", hint=_LINE_HINT)
    for key, value in root.value:
        if not isinstance(key, yaml.ScalarNode) or key.value not in SECTIONS:
            yield key, value, ""
        elif isinstance(value, yaml.MappingNode):
            yield from ((below, given, key.value) for below, given in value.value)
        elif not _is_null(value):  # one whose lines are all comments is empty
            hint = f"write options below {key.value}:, indented by two spaces"
            faults.append(ConfigError(f"{path}, line {key.start_mark.line + 1}: {key.value} is a section", hint=hint))


def _entry(key: yaml.Node, value: yaml.Node, section: str, origin: str) -> Entry:
    import yaml  # noqa: PLC0415  # as above

    if not isinstance(key, yaml.ScalarNode):
        raise ConfigError(f"{origin}: a plain value was expected", hint=_LINE_HINT)
    option, is_negated = _option(key.value.replace("_", "-"), section, f"{origin}: there is no option", key)
    items = value.value if isinstance(value, yaml.SequenceNode) else [value]
    if not all(isinstance(item, yaml.ScalarNode) for item in items):
        raise ConfigError(f"{origin}: a plain value was expected", hint=_LINE_HINT)
    if not items or any(_is_null(item) for item in items):
        raise ConfigError(f"{origin}: {_name(key, section)} has no value", hint="give it one or remove the line")
    if len(items) > 1 and option.metavar == "F":
        raise ConfigError(f"{origin}: {_name(key, section)} is one file", hint="name one")
    text, origin = option.separator.join(str(item.value) for item in items), f"{origin}: {_name(key, section)}"
    return Entry(option, opposite(text, origin) if is_negated else text, origin)


def _option(name: str, section: str, complaint: str, key: yaml.Node) -> tuple[Option, bool]:
    """The option of that name, and whether it is negated: `no-io`."""
    known = _BY_SECTION[section]
    if name in known:
        return known[name], False
    turned = known.get(name.removeprefix("no-"))
    if turned is not None and turned.is_switch and name.startswith("no-"):
        return turned, True
    raise ConfigError(f"{complaint} {_name(key, section)!r}", hint=_nearest(name, section))


def _nearest(name: str, section: str) -> str:
    if name in _SECRET:
        return "secrets stand in files (token-file) or in the environment, never here"
    if name == _TOP_LEVEL:
        return "options of trace stand at the top level of the file, with no trace: above them"
    known = _BY_SECTION[section]
    elsewhere = [other for other in _BY_SECTION if other != section and name in _BY_SECTION[other]]
    if elsewhere and name not in known:
        return f"it belongs below {elsewhere[0]}:" if elsewhere[0] else "it belongs at the top level of the file"
    near = difflib.get_close_matches(name, (*known, *(() if section else SECTIONS)), n=1)
    if near:
        return f"perhaps {near[0]}"
    return f"one of {', '.join((*known, *(f'{one}:' for one in SECTIONS)) if not section else known)}"


def _name(key: yaml.Node, section: str) -> str:
    return f"{section}.{key.value}" if section else str(key.value)


def _is_null(node: yaml.Node) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:null")


def opposite(text: str, origin: str) -> str:
    """The opposite of the text of a switch.

    Raises:
        OptionError: the text is not that of a switch.
    """
    try:
        return "false" if parse_switch(text) else "true"
    except OptionError as error:
        raise OptionError(f"{origin}: {error}", hint=error.hint) from None
