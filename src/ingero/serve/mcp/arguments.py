"""Normalizes arguments as assistants really send them: empty values are left out, and errors name accepted values.

Models fill in every optional argument: with null, "", "null", 0, [] or "all". They send lists as text, and numbers too,
write names in their own way (`topN`), and put all into one more object (`{"arguments": {...}}`). What is merely ignored
of these would be answered as if it had not been asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ingero.errors import IngeroError
from ingero.serve.mcp.untrusted import harmless, traced
from ingero.serve.recording_source import ACCEPTED_SINCE, parse_since_ns

_NOTHING = frozenset({"", "null", "none", "nil", "undefined", "all", "any", "*", "[]", "{}", '""', "''"}) | {
    *("-", "n/a", "default", "unset", "unspecified", "not specified", "not set", "not provided")
}
_FENCE = re.compile(r"```(?:(?:sql|sqlite)\b|[a-z]*[ \t]*\n)?(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_BEFORE = r"(?:\s|--[^\n]*\n|/\*(?:(?!\*/).)*\*/|\()*"  # a statement: comments, too
_STATEMENT = re.compile(_BEFORE + r"(?:select|with|values|explain)\b", re.DOTALL | re.IGNORECASE)
_BETWEEN = re.compile(r"[\s,;]+")
_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("processid", "process"), ("pid", "pids")),
    **dict.fromkeys(("processids", "processes", "pids"), ("pids", "pid")),
    **dict.fromkeys(("duration", "timerange", "period"), ("since",)),
    **dict.fromkeys(("limit", "topn", "maxresults", "maxrows", "top", "count"), ("limit", "top_n")),
    **dict.fromkeys(("incident", "incidentnumber", "incidentid"), ("number",)),
    **dict.fromkeys(("operation", "opname"), ("op",)),
    **dict.fromkeys(("library", "lib"), ("source",)),
    **dict.fromkeys(("sql", "sqlquery", "statement"), ("query",)),
    "offset": ("skip",),
}
"""What models call an argument (its letters alone) -> its name, the first that the tool has."""
_SQL, _SINCE = frozenset({"query", "sql"}), "since"
_MAX_SHOWN = 80

Fields = Mapping[str, FieldInfo]


class ArgumentError(IngeroError):
    """An argument cannot be understood."""


def cleaned(fields: Fields, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that say something, as the tool takes them; those that no tool knows are left out.

    Raises:
        ArgumentError: one says what it cannot, or is needed and says nothing.
    """
    sent = _named(fields, arguments)
    given = {name: value for name in fields if not _is_nothing(value := _plain(sent.get(name)), fields[name])}
    found = {name: _fitting(name, value, fields[name]) for name, value in given.items()}
    for name, field in fields.items():
        if field.is_required() and name not in found:
            found[name] = _called_otherwise(name, field, [value for key, value in sent.items() if key not in fields])
    return found


def _named(fields: Fields, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by the tool's own names, also of an object inside that has some; what is written right goes first.

    Those of other names stay.
    """
    own = {_letters(name): name for name in fields}

    def name_of(key: str) -> str:
        letters = _letters(key)
        other = (name for name in _OTHER_NAMES.get(letters, ()) if name in fields)
        return own.get(letters) or next(other, key)

    inner = [value for key, value in arguments.items() if name_of(key) not in fields]
    levels = [arguments, *(one for one in map(_plain, inner) if isinstance(one, dict))]
    found: dict[str, Any] = {}
    for level in levels:
        for key, value in level.items():  # in two rounds: `pid` counts before `PID`
            if key in fields:
                found.setdefault(key, value)
        for key, value in level.items():
            found.setdefault(name_of(key), value)
    return found


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _called_otherwise(name: str, field: FieldInfo, others: Sequence[Any]) -> Any:  # any JSON value
    """A needed argument that was sent under a name that no tool knows: the only one that can be it.

    Raises:
        ArgumentError: there is none, or more than one.
    """
    fitting = {text for other in others if isinstance(other, str) and _can_be(name, text := _text(name, other), field)}
    if len(fitting) != 1:
        raise ArgumentError(f"{name} is needed: {_accepted(name, field)}")
    return fitting.pop()


def _can_be(name: str, text: str, field: FieldInfo) -> bool:
    return _STATEMENT.match(text) is not None if name in _SQL else text in names_of(field)


def complaint(fields: Fields, error: ValidationError) -> str:
    """The error for invalid arguments, by name, with the accepted values and how to leave the argument out."""
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
        if isinstance(value, str):  # of whole numbers
            value = [text for part in _BETWEEN.split(value.strip(" []()")) if (text := _unquoted(part))]
        values = value if isinstance(value, list) else [value]
        for one in values:
            _refuse_bool(name, one, field)
        return values
    if isinstance(value, list):
        if len(value) > 1:
            raise ArgumentError(f"{name}: it is one value, not a list; {_accepted(name, field)}")
        value = value[0]
    if isinstance(value, dict) and len(value) == 1:  # {"value": 5}
        value = next((one for key, one in value.items() if key in (name, "value", *_also(name))), value)
    _refuse_bool(name, value, field)
    if name == _SINCE:
        return _since(value, field)
    if not isinstance(value, str):
        return str(value) if types == {str} and isinstance(value, (int, float)) else value
    text = _text(name, value)
    if Literal in types:
        return next((one for one in names_of(field) if one.lower() == text.lower()), value)
    return text.removeprefix("#").strip() if int in types else text


def _also(name: str) -> frozenset[str]:
    return _SQL if name in _SQL else frozenset()


def _refuse_bool(name: str, value: Any, field: FieldInfo) -> None:  # any JSON value
    """True is no number and no text, whatever Python says."""
    if isinstance(value, bool) and bool not in _types(field):
        raise ArgumentError(_refused(name, value, field))


def _text(name: str, value: str) -> str:
    """Text without what models put around it: quotes, a code fence and what is said before it, an empty call."""
    text = _unquoted(value)
    if name in _SQL:
        is_fenced = "```" in text and _STATEMENT.match(text) is None
        return match[1].strip() if is_fenced and (match := _FENCE.search(text)) else text
    return text.removesuffix("()") if name == "op" else text


def _unquoted(text: str) -> str:
    text = text.strip()
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'`" and text[0] not in text[1:-1]
    return text[1:-1].strip() if is_quoted else text


def _since(value: Any, field: FieldInfo) -> str:  # any JSON value
    value = _unquoted(value) if isinstance(value, str) else value
    if value in (-1, "-1"):  # a second, or no limit
        raise ArgumentError(_refused(_SINCE, value, field))
    text = f"{value}s" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
    try:
        since_ns = parse_since_ns(text)
    except IngeroError:
        raise ArgumentError(_refused(_SINCE, value, field)) from None
    return "" if since_ns is None else f"{since_ns // 1_000_000}ms"  # which nodes of every version read


def _types(field: FieldInfo) -> set[Any]:
    """The types that a field may have, without None: types, `list` for lists, `Literal` for names."""
    found = (
        get_args(field.annotation) if get_origin(field.annotation) not in (None, list, Literal) else (field.annotation,)
    )
    return {get_origin(one) or one for one in found if one is not type(None)}


def _refused(name: str, value: object, field: FieldInfo) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return f"{harmless(name)}: {traced(text, most=_MAX_SHOWN)} is not accepted; {_accepted(name, field)}"


def _accepted(name: str, field: FieldInfo) -> str:
    """The accepted values of a field, and its default."""
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
