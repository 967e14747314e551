"""Every text and name of ingero that somebody reads, and where it stands: what `check_vocabulary.py` goes through.

Documents, literals of the Python modules that reach users, help of the commands, texts of the web page, files of
deployment, names of the database, of JSON and of the metrics. Read from the sources, so that each has its line.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import apsw

_PACKAGE = "src/ingero"
# Modules whose literals with a space in them reach users. bpf/ is C.
_LITERALS = (
    "attach",
    "capture",
    "cli",
    "decode",
    "demo",
    "diagnose",
    "discover",
    "fleet",
    "profiles",
    "sandbox",
    "serve",
    "store",
)
# Those whose dictionaries with literal keys become JSON, and whose classes describe it.
_JSON_MODULES = ("cli", "fleet", "serve", "diagnose/incidents/incident_json.py")
_METRICS = "serve/metrics"
_PLAIN_FILES = ("configs/*", "deploy/**/*", "examples/**/*", "install.sh", "scripts/*", "web/index.html", "server.json")
_PLAIN_SUFFIXES = {".yaml", ".yml", ".json", ".service", ".sysusers", ".sh", ".html", ".txt", ".tpl", ".md", ""}
_SKIPPED_FILES = ("seccomp.json",)

# Literals with spaces that no user reads: SQL, types, formats, patterns.
_SQL = re.compile(
    r"\s*(?:SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|ALTER|ATTACH|PRAGMA|WITH|BEGIN|FROM|WHERE|AND|LEFT JOIN|JOIN|"
    r"ORDER BY|GROUP BY|UNION|ON|VALUES)\b"
)
_IN_SQL = re.compile(r"\braw_\w+\b|\bSELECT\b.*\bFROM\b|\b[a-z]\.\w+ *(?:[<>=]|AND\b|IN\b)|\bAS \w+, ", re.DOTALL)
_TYPE = re.compile(r"\s*[\w.]+(?:\[.*\])?(?:\s*\|\s*[\w.]+(?:\[.*\])?)*\s*$", re.DOTALL)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[_.\-][A-Za-z0-9]+)*_?$")
_SLUG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)+$")
_LABEL = re.compile(r"[A-Z][a-z]+$")
_NOT_READ_CALLS = {
    "compile",
    "TypeVar",
    "cast",
    "getattr",
    "setattr",
    "hasattr",
    "fullmatch",
    "sub",
    "findall",
    "finditer",
    "namedtuple",
    "dtype",
}

_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})(\w*)")
_INLINE_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\([^)\s]*\)|<https?://[^>]*>|https?://\S+")
_ASKS = {"sql"}
_CODE_FILES = (".py", ".h", ".c", ".sql", ".ts", ".tsx")


class Kind(Enum):
    """What a text is: prose is searched for words, a name for its parts; HELP is prose of help, VIEW a view's name."""

    PROSE = "prose"
    HELP = "help"
    NAME = "name"
    VIEW = "view"


@dataclass(frozen=True, slots=True)
class UserText:
    """One text. path: from the root. line: where it begins. last_line: where it ends; 0: by the text's line breaks."""

    path: str
    line: int
    kind: Kind
    text: str
    last_line: int = 0


def user_texts(root: Path) -> Iterator[UserText]:
    """All user texts in a checkout of the repository."""
    for path in sorted(root.glob("*.md")) + sorted((root / "docs").rglob("*.md")):
        yield from markdown(path.read_text("utf-8"), _relative(path, root))
    for folder in _LITERALS:
        for path in sorted((root / _PACKAGE / folder).rglob("*.py")):
            yield from python(path.read_text("utf-8"), _relative(path, root))
    for path in sorted((root / _PACKAGE).glob("*.py")):
        yield from python(path.read_text("utf-8"), _relative(path, root))
    for path in sorted((root / "web" / "src").rglob("*.ts*")):
        yield from typescript(path.read_text("utf-8"), _relative(path, root))
    yield from _plain_files(root)
    schema, views = (root / _PACKAGE / "store" / name for name in ("schema.sql", "views.sql"))
    yield from sql_names(
        schema.read_text("utf-8"), views.read_text("utf-8"), _relative(schema, root), _relative(views, root)
    )
    for path in sorted((root / _PACKAGE).rglob("*.schema.json")) + sorted((root / "configs").glob("*.schema.json")):
        yield from json_schema(path.read_text("utf-8"), _relative(path, root))


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _plain_files(root: Path) -> Iterator[UserText]:
    for pattern in _PLAIN_FILES:
        for path in sorted(root.glob(pattern)):
            is_schema = path.name.endswith(".schema.json")
            if path.is_file() and path.suffix in _PLAIN_SUFFIXES and path.name not in _SKIPPED_FILES and not is_schema:
                reads = markdown if path.suffix == ".md" else plain
                yield from reads(path.read_text("utf-8"), _relative(path, root))


def plain(text: str, path: str) -> Iterator[UserText]:
    """A file of which every line is read: a configuration, a script, a manifest."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield UserText(path, number, Kind.PROSE, line)


def markdown(text: str, path: str) -> Iterator[UserText]:
    """Paragraphs without their code; code in backticks as names where it is one, blocks of SQL as what they ask for."""
    block: list[tuple[int, str]] = []
    fence, language = "", ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = _FENCE.match(line)
        if mark and (not fence or mark[2].startswith(fence)):
            yield from _paragraph(block, path)
            block = []
            fence, language = ("", "") if fence else (mark[2][:3], mark[3])
        elif fence:
            if language in _ASKS:
                yield from (UserText(path, number, Kind.NAME, name) for name in re.findall(r"[a-z]\w+", line))
            yield UserText(path, number, Kind.PROSE, line)
        elif not line.strip() or line.startswith(("#", "|")):
            yield from _paragraph(block, path)
            block = []
            if line.strip():
                yield from _paragraph([(number, line)], path)
        else:
            block.append((number, line))
    yield from _paragraph(block, path)


def _paragraph(lines: list[tuple[int, str]], path: str) -> Iterator[UserText]:
    if not lines:
        return
    for number, line in lines:
        for code in _INLINE_CODE.findall(line):
            if _NAME.match(code) and not code.endswith(_CODE_FILES):
                yield UserText(path, number, Kind.NAME, code)
    text = "\n".join(_LINK.sub("]", line) for _, line in lines)
    # a name in backticks is looked at as a name; other code as the words that it shows
    text = _INLINE_CODE.sub(lambda code: "`" + "x" * len(code[1]) + "`" if _NAME.match(code[1]) else code[0], text)
    yield UserText(path, lines[0][0], Kind.PROSE, text)


def python(text: str, path: str) -> Iterator[UserText]:
    """Literals of a module that are sentences, and names that become JSON, metrics or slugs; help of its commands."""
    tree = ast.parse(text)
    inside = path.removeprefix(f"{_PACKAGE}/")
    skipped = _docstrings(tree) | _not_read(tree)
    is_json = inside.startswith(_JSON_MODULES)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and _is_command(node) and (help_text := ast.get_docstring(node)):
            yield UserText(path, node.body[0].lineno, Kind.HELP, help_text)
        if isinstance(node, ast.ClassDef) and is_json and inside.startswith("serve") and _is_shape(node):
            yield from (
                UserText(path, one.lineno, Kind.NAME, one.target.id)
                for one in node.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            )
        if isinstance(node, ast.Dict) and is_json:
            yield from (
                UserText(path, key.lineno, Kind.NAME, key.value)
                for key in node.keys
                if isinstance(key, ast.Constant) and isinstance(key.value, str) and _NAME.match(key.value)
            )
        yield from _literal(node, path, skipped, is_metric=inside.startswith(_METRICS))


def _literal(node: ast.AST, path: str, skipped: set[int], *, is_metric: bool) -> Iterator[UserText]:
    if id(node) in skipped:
        return
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        value = "".join(map(str, parts))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        value = node.value
    else:
        return
    last = node.end_lineno or node.lineno
    if " " in value.strip() or value.strip().endswith((":", "%")) or _LABEL.match(value):
        if not (_SQL.match(value) or _IN_SQL.search(value) or (_TYPE.match(value) and "[" in value)):
            yield UserText(path, node.lineno, Kind.PROSE, value, last)
    elif _SLUG.match(value) or (is_metric and _NAME.match(value)):
        yield UserText(path, node.lineno, Kind.NAME, value, last)


def _docstrings(tree: ast.AST) -> set[int]:
    """Texts that stand alone: docstrings, of attributes too."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def _not_read(tree: ast.AST) -> set[int]:
    """Literals in patterns, type expressions, asserts and `__all__`, and parts of f-strings, which count as a whole."""
    found: set[int] = set()
    for node in ast.walk(tree):
        inner: list[ast.AST] = []
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in _NOT_READ_CALLS:
                inner = list(node.args)
        elif isinstance(node, ast.Assert):
            inner = [node]
        elif isinstance(node, ast.Assign) and any(getattr(one, "id", "") == "__all__" for one in node.targets):
            inner = [node.value]
        elif isinstance(node, ast.JoinedStr):
            found |= {id(part) for part in node.values if isinstance(part, ast.Constant)}
            found |= {
                id(part)
                for value in node.values
                if isinstance(value, ast.FormattedValue) and value.format_spec
                for part in ast.walk(value.format_spec)
            }
        for one in inner:
            found |= {id(part) for part in ast.walk(one)}
    return found


def _is_command(node: ast.FunctionDef) -> bool:
    calls = (one.func if isinstance(one, ast.Call) else one for one in node.decorator_list)
    return any(isinstance(call, ast.Attribute) and call.attr in ("command", "group") for call in calls)


def _is_shape(node: ast.ClassDef) -> bool:
    return any(getattr(base, "id", getattr(base, "attr", "")) in ("TypedDict", "BaseModel") for base in node.bases)


_TS_TEXT = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/|\{/\*.*?\*/\})|"(?P<double>(?:[^"\\\n]|\\.)*)"|'(?P<single>(?:[^'\\\n]|\\.)*)'|`(?P<template>(?:[^`\\]|\\.)*)`""",
    re.DOTALL,
)
_JSX_TEXT = re.compile(r"(?<![=\-])[>}]([^<>{}=;&|`]*[A-Za-z]{2}[^<>{}=;|`]*)(?=[<{])")
_TS_KEY = re.compile(r"^\s*(?:readonly )?([a-z]\w*)\??:", re.MULTILINE)
_PLACE = re.compile(r"\$\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")


def typescript(text: str, path: str) -> Iterator[UserText]:
    """String literals and texts between tags; keys of the interfaces that mirror the JSON."""
    bare = list(text)
    for match in _TS_TEXT.finditer(text):
        value = match["double"] or match["single"] or match["template"]
        line = text.count("\n", 0, match.start()) + 1
        if value is not None and not _is_import(text, match.start()):
            value = _PLACE.sub("{}", value)
            is_name = _SLUG.match(value) or (_NAME.match(value) and "_" in value)
            yield UserText(path, line, Kind.NAME if is_name else Kind.PROSE, value)
        for index in range(*match.span()):
            if bare[index] != "\n":
                bare[index] = "x" if match["comment"] is None else " "
    rest = "".join(bare)
    if path.endswith(".tsx"):
        for match in _JSX_TEXT.finditer(rest):
            yield UserText(path, rest.count("\n", 0, match.start(1)) + 1, Kind.PROSE, match[1])
    for match in _TS_KEY.finditer(rest):
        if "_" in match[1] or path.endswith("api.ts"):
            yield UserText(path, rest.count("\n", 0, match.start(1)) + 1, Kind.NAME, match[1])


def _is_import(text: str, at: int) -> bool:
    return bool(re.search(r"\b(?:from|import)\s*$", text[max(0, at - 12) : at]))


def sql_names(schema: str, views: str, schema_path: str, views_path: str) -> Iterator[UserText]:
    """Tables, views and columns as SQLite knows them, and the comments that documentation is made from."""
    db = apsw.Connection(":memory:")
    db.execute(schema)
    db.execute(views)
    for name, kind, column in db.execute(
        "SELECT s.name, s.type, c.name FROM sqlite_schema s, pragma_table_info(s.name) c "
        "WHERE s.type IN ('view', 'table') UNION ALL SELECT name, type, '' FROM sqlite_schema "
        "WHERE type IN ('view', 'table') ORDER BY 1, 3"
    ):
        text, path = (views, views_path) if kind == "view" else (schema, schema_path)
        line = _line_of(text, str(name), str(column))
        of = Kind.NAME if column else Kind.VIEW
        yield UserText(path, line, of, str(column) or str(name).removeprefix("raw_"))
    for text, path in ((schema, schema_path), (views, views_path)):
        yield from _comments(text, path)


def _line_of(text: str, name: str, column: str) -> int:
    begin = re.search(rf"^CREATE (?:TABLE|VIEW) {name}\b", text, re.MULTILINE)
    at = begin.start() if begin else 0
    if column:
        end = text.find(";\n", at)
        found = re.compile(rf"\b{column}\b").search(text, begin.end() if begin else 0, end if end > 0 else len(text))
        at = found.start() if found else at
    return text.count("\n", 0, at) + 1


def _comments(text: str, path: str) -> Iterator[UserText]:
    """Comments that stand one below the other are one text."""
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        _, mark, comment = line.partition("--")
        if mark and (not lines or lines[-1][0] == number - 1):
            lines.append((number, comment))
        elif mark or lines:
            if lines:
                yield UserText(path, lines[0][0], Kind.PROSE, "\n".join(one for _, one in lines))
            lines = [(number, comment)] if mark else []
    if lines:
        yield UserText(path, lines[0][0], Kind.PROSE, "\n".join(one for _, one in lines))


def json_schema(text: str, path: str) -> Iterator[UserText]:
    """Keys and descriptions of a JSON schema."""
    keys: dict[str, None] = {}
    descriptions: dict[str, None] = {}
    _walk(json.loads(text), keys, descriptions)
    for key in keys:
        at = text.find(json.dumps(key, ensure_ascii=False) + ":")
        yield UserText(path, text.count("\n", 0, max(at, 0)) + 1, Kind.NAME, key)
    for description in descriptions:
        at = text.find(json.dumps(description, ensure_ascii=False))
        at = at if at >= 0 else text.find(json.dumps(description))
        yield UserText(
            path, text.count("\n", 0, max(at, 0)) + 1, Kind.PROSE, description, text.count("\n", 0, max(at, 0)) + 1
        )


def _walk(node: object, keys: dict[str, None], descriptions: dict[str, None]) -> None:
    if isinstance(node, dict):
        for name in ("properties", "$defs", "patternProperties"):
            if isinstance(node.get(name), dict):
                keys.update(dict.fromkeys(node[name]))
        for name in ("description", "title"):
            if isinstance(node.get(name), str):
                descriptions[node[name]] = None
        for value in node.get("enum", ()):
            if isinstance(value, str) and _NAME.match(value):
                keys[value] = None
        for value in node.values():
            _walk(value, keys, descriptions)
    elif isinstance(node, list):
        for value in node:
            _walk(value, keys, descriptions)
