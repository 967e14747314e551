"""Writes where each CPython minor version keeps what a stack walk needs, from its own headers.

    python tools/gen_python_layouts.py INCLUDE_DIR...           one folder per version (with `Python.h` and `internal/`)
    python tools/gen_python_layouts.py --check INCLUDE_DIR...   only says whether the table agrees

Versions whose headers are not given keep their entry. Headers come with the interpreter (`python3-config --includes`)
or in Debian's libpythonX.Y-dev.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

_TOOLS = Path(__file__).resolve().parent
TABLE = _TOOLS.parent / "src" / "ingero" / "discover" / "python_layouts.json"
_VERSION = re.compile(r'#define\s+PY_VERSION\s+"(\d+\.\d+)')


def layout(include: Path) -> tuple[str, dict[str, int]]:
    """(minor version, name -> offset) of the interpreter whose headers lie in a folder."""
    found = _VERSION.search((include / "patchlevel.h").read_text())
    if not found:
        raise SystemExit(f"{include}/patchlevel.h names no version")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "layout"
        folders = [include, include / "internal", include.parent]
        command = ["gcc", "-w", *(f"-I{one}" for one in folders), _TOOLS / "python_layout.c", "-o", program]
        subprocess.run(command, check=True)
        return found.group(1), json.loads(subprocess.run([program], check=True, stdout=subprocess.PIPE).stdout)


def text(layouts: dict[str, dict[str, int]]) -> str:
    """The table, one version a line, the oldest first."""
    ordered = sorted(layouts.items(), key=lambda one: [int(part) for part in one[0].split(".")])
    lines = ",\n".join(f"  {json.dumps(version)}: {json.dumps(fields)}" for version, fields in ordered)
    return "{\n" + lines + "\n}\n"


def main(arguments: list[str]) -> None:
    """Generates or checks."""
    is_check = "--check" in arguments
    known: dict[str, dict[str, int]] = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    found = dict(layout(Path(one)) for one in arguments if one != "--check")
    if is_check:
        wrong = [version for version, fields in found.items() if known.get(version) != fields]
        if wrong:
            raise SystemExit(f"{TABLE.name} is wrong for {', '.join(wrong)}: run tools/gen_python_layouts.py")
    else:
        TABLE.write_text(text({**known, **found}))


if __name__ == "__main__":
    main(sys.argv[1:])
