"""Names each retired word that somebody could read, with file, line and what to write instead.

python tools/check_vocabulary.py [--summary] [PATH ...]: PATH limits the answer to files below it. Ends with 1 where
there is one.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from retired_words import Retired, allowed_spans, compiled
from user_texts import Kind, UserText, user_texts

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Found:
    """A retired word in a text. text: the word as written there."""

    path: str
    line: int
    text: str
    word: Retired

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r} -> {self.word.instead}"

    @property
    def folder(self) -> str:
        """The file's folder, as far as a summary divides: src/ingero/serve, docs, web/src."""
        parts = self.path.split("/")
        depth = 3 if parts[:2] == ["src", "ingero"] and len(parts) > 3 else 2 if len(parts) > 2 else 1
        return "/".join(parts[: min(depth, len(parts) - 1)]) or "."


def retired_in(texts: Iterable[UserText], root: Path = ROOT) -> Iterator[Found]:
    """What is retired in these texts, in their order. root: of their files, to find the line inside a long literal."""
    for text in texts:
        for word, begin in _matches(text):
            yield Found(text.path, _line(text, word[1], begin, root), " ".join(word[1].split()), word[0])


def _matches(text: UserText) -> Iterator[tuple[tuple[Retired, str], int]]:
    spans: list[tuple[int, int]] | None = None
    for word, prose, name, view in compiled():
        pattern = {Kind.NAME: name, Kind.VIEW: view}.get(text.kind, prose)
        if pattern is None or (word.help_only and text.kind is not Kind.HELP):
            continue
        for match in pattern.finditer(text.text):
            if not match[0]:
                continue
            if spans is None:
                spans = list(allowed_spans(text.text, text.path))
            if not any(begin <= match.start() and match.end() <= end for begin, end in spans):
                yield (word, text.text if text.kind in (Kind.NAME, Kind.VIEW) else match[0]), match.start()


def _line(text: UserText, matched: str, begin: int, root: Path) -> int:
    """A literal of several lines is searched for the word: how its text lies over them is not known otherwise."""
    if not text.last_line:
        return text.line + text.text.count("\n", 0, begin)
    if text.last_line > text.line and (root / text.path).is_file():
        first = matched.split(maxsplit=1)[0]
        lines = (root / text.path).read_text("utf-8").splitlines()[text.line - 1 : text.last_line]
        for number, line in enumerate(lines):
            if matched in line:
                return text.line + number
        return next((text.line + number for number, line in enumerate(lines) if first in line), text.line)
    return text.line


def summary(found: Sequence[Found]) -> str:
    """How often per word, and per folder."""
    words = Counter(one.word.word for one in found)
    folders = Counter(one.folder for one in found)
    lines = [f"{len(found):,} retired words in {len({one.path for one in found}):,} files"]
    lines += ["", *(f"{count:7,}  {word}" for word, count in words.most_common())]
    lines += ["", *(f"{count:7,}  {folder}" for folder, count in folders.most_common())]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """What the command prints, and its exit code."""
    parser = argparse.ArgumentParser(description="Name each retired word that somebody could read.")
    parser.add_argument("--summary", action="store_true", help="Count them per word and per folder.")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="Only files below these.")
    options = parser.parse_args(arguments)
    found = list(retired_in(user_texts(ROOT)))
    if options.paths:
        below = tuple(path.rstrip("/") for path in options.paths)
        found = [one for one in found if any(one.path == path or one.path.startswith(f"{path}/") for path in below)]
    print(summary(found) if options.summary else "\n".join(map(str, found)))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
