"""Reads ingero.yaml: a list of options, those of many nodes below `fleet`; every complaint with its line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ingero.errors import IngeroError

if TYPE_CHECKING:
    import yaml

FILE_NAME = "ingero.yaml"
CONFIG_VARIABLE = "INGERO_CONFIG"
FLEET = "fleet"  # the only key that has keys below it: `fleet.nodes` and so on
_SYSTEM_FILE = Path("/etc/ingero") / FILE_NAME


class ConfigError(IngeroError):
    """A configuration file cannot be used."""


def find_config(explicit: str | None, home: Path, system_file: Path = _SYSTEM_FILE) -> Path | None:
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
    places = (home / ".config" / "ingero" / FILE_NAME, system_file)
    return next((path for path in places if path.is_file()), None)


def read_config(path: Path) -> dict[str, tuple[list[str], str]]:
    """By key: the value's texts (several of a list), and where it stands.

    Raises:
        ConfigError: it is no YAML, or holds more than keys with plain values.
    """
    import yaml  # noqa: PLC0415  # takes 30 ms, and most runs have no such file

    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}, line {line}: {error.problem}", hint="each line is like  max-db: 10g") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="name another file with --config F") from error
    found: dict[str, tuple[list[str], str]] = {}
    for key, texts, line in _entries(path, root):
        if key in found:
            raise ConfigError(f"{path}, line {line}: {key} stands there twice", hint="keep one of them")
        found[key] = (texts, f"{path}, line {line}")
    return found


def _entries(path: Path, root: yaml.Node | None) -> Iterator[tuple[str, list[str], int]]:
    import yaml  # noqa: PLC0415  # as above

    if root is None:  # an empty file
        return
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path}, line 1: a list of options is wanted", hint="each line is like  max-db: 10g")
    yield from _pairs(path, root, "")


def _pairs(path: Path, root: yaml.MappingNode, above: str) -> Iterator[tuple[str, list[str], int]]:
    import yaml  # noqa: PLC0415  # as above

    for key, value in root.value:
        line = key.start_mark.line + 1
        if isinstance(value, yaml.MappingNode) and not above and key.value == FLEET:
            yield from _pairs(path, value, f"{FLEET}.")
            continue
        items = value.value if isinstance(value, yaml.SequenceNode) else [value]
        if not isinstance(key, yaml.ScalarNode) or not all(isinstance(item, yaml.ScalarNode) for item in items):
            raise ConfigError(f"{path}, line {line}: a plain value is wanted", hint="each line is like  max-db: 10g")
        if any(item.tag == "tag:yaml.org,2002:null" for item in items):
            raise ConfigError(f"{path}, line {line}: {key.value} has no value", hint="give it one or remove the line")
        yield f"{above}{key.value}", [str(item.value) for item in items], line
