"""A generated file of the repository: written, or with --check compared."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(path: Path, text: str) -> None:
    """Writes the file; with --check ends the program with an error where it is another one."""
    if "--check" not in sys.argv[1:]:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != text:
        sys.exit(f"{path.name} is out of date; run: make generate")
