"""Arguments as assistants really send them: what stands for nothing is left out, and an error says what would do.

Models fill in every optional argument: with null, "", "null", 0, [] or "all". They send lists as text, and numbers too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ingero.errors import IngeroError
from ingero.serve.mcp.untrusted import harmless, traced
from ingero.serve.recording_source import ACCEPTED_SINCE, parse_since_ns

_NOTHING = frozenset({"", "null", "none", "nil", "undefined", "all", "any", "*", "[]", "{}", '""', "''"})
_FENCE = re.compile(r"\s*```[a-zA-Z]*\s*\n?(.*?)```\s*", re.DOTALL)
_SQL, _SINCE = frozenset({"query", "sql"}), "since"
_MOST_SHOWN = 80

Fields = Mapping[str, FieldInfo]


class ArgumentError(IngeroError):
    """An argument cannot be understood."""


def cleaned(fields: Fields, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that say something, as the tool takes them; those that no tool knows are left out.

    Raises:
        ArgumentError: one says what it cannot, or is needed and says nothing.
    """
    given = {name: value for name in fields if not _is_nothing(value := _plain(arguments.get(name)), fields[name])}
    found = {name: _fitting(name, value, fields[name]) for name, value in given.items()}
    for name, field in fields.items():
        if field.is_required() and name not in found:
            raise ArgumentError(f"{name} is needed: {_accepted(name, field)}")
    return found


def complaint(fields: Fields, error: ValidationError) -> str:
    """What is wrong with arguments, by name: what is accepted, and how to leave it out."""
    lines = []
    for one in error.errors(include_url=False, include_context=False):
        name = str(one["loc"][0]) if one["loc"] else ""
        field = fields.get(name)
        if field is not None:
            lines.append(_refused(name, one["input"], field))
    return "\n".join(dict.fromkeys(lines)) or "the arguments are not what this tool takes"


def _plain(value: Any) -> Any:  # any JSON value
    """Text that is a JSON list becomes the list; a list without what stands for nothing."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return value
    if isinstance(value, list):
        return [one for one in value if not (one is None or one == 0 or (isinstance(one, str) and _is_word(one)))]
    return value


def _is_word(text: str) -> bool:
    return text.strip().lower() in _NOTHING


def _is_nothing(value: Any, field: FieldInfo) -> bool:  # any JSON value
    if value is None or value in ([], {}):
        return True
    if isinstance(value, str):
        return _is_word(value) or (value.strip() == "0" and bool not in _types(field))
    return not isinstance(value, bool) and value == 0 and bool not in _types(field)


def _fitting(name: str, value: Any, field: FieldInfo) -> Any:  # any JSON value
    types = _types(field)
    if list in types:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",")]
        return value if isinstance(value, list) else [value]
    if isinstance(value, list):
        if len(value) > 1:
            raise ArgumentError(f"{name}: it is one value, not a list; {_accepted(name, field)}")
        value = value[0]
    if name == _SINCE:
        return _since(value, field)
    if isinstance(value, str) and name in _SQL:
        return match[1].strip() if (match := _FENCE.fullmatch(value)) else value
    return str(value) if types == {str} and isinstance(value, (int, float)) else value


def _since(value: Any, field: FieldInfo) -> str:  # any JSON value
    text = f"{value}s" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
    try:
        since_ns = parse_since_ns(text)
    except IngeroError:
        raise ArgumentError(_refused(_SINCE, value, field)) from None
    return "" if since_ns is None else f"{since_ns // 1_000_000}ms"  # which nodes of every version read


def _types(field: FieldInfo) -> set[Any]:
    """What it may be, without None: types, `list` for lists, `Literal` for names."""
    found = (
        get_args(field.annotation) if get_origin(field.annotation) not in (None, list, Literal) else (field.annotation,)
    )
    return {get_origin(one) or one for one in found if one is not type(None)}


def _refused(name: str, value: object, field: FieldInfo) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return f"{harmless(name)}: {traced(text, most=_MOST_SHOWN)} is not accepted; {_accepted(name, field)}"


def _accepted(name: str, field: FieldInfo) -> str:
    """What it takes, and what happens without it."""
    if field.is_required():
        without = ""
    else:
        default = field.get_default()
        meaning = "for everything" if default in (None, "") else f"for {json.dumps(default)}"
        without = f", or leave {name} out (or null) {meaning}"
    return f"give {_kinds(name, field)}{without}"


def _kinds(name: str, field: FieldInfo) -> str:
    types = _types(field)
    if name == _SINCE:
        return ACCEPTED_SINCE
    if Literal in types:
        return "one of " + ", ".join(names_of(field))
    if bool in types:
        return "true or false"
    if int in types or list in types:
        low = next((one.ge for one in field.metadata if hasattr(one, "ge")), None)
        high = next((one.le for one in field.metadata if hasattr(one, "le")), None)
        bounds = (f" from {low}" if low is not None else "") + (f" to {high}" if high is not None else "")
        return "a list of whole numbers" if list in types else f"a whole number{bounds}"
    return f"a text ({(field.description or name).rstrip('.')})"


def names_of(field: FieldInfo) -> list[str]:
    """The names that one may be."""
    found = (field.annotation, *get_args(field.annotation))
    return [str(name) for one in found if get_origin(one) is Literal for name in get_args(one)]
