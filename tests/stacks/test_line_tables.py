"""Lines of instructions over the whole standard library of each interpreter, against what it says itself."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from ingero.decode.python_lines import line_of
from tests.integration.python_truth import Subject
from tests.stacks.report import Report
from tests.stacks.subjects import subjects

_EXPORTER = Path(__file__).parents[1] / "unit" / "line_tables.py"
_ALL_FILES = "1000000"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in subjects() if "," not in name])
def test_every_line_is_the_one_that_the_interpreter_says(name: str, tmp_path: Path, report: Report) -> None:
    major, minor = name.replace("t", "-").split("-", 1)[0].split(".", 2)[:2]
    version, wrong, checked, objects = (int(major), int(minor)), [], 0, 0
    with _exported(subjects()[name], tmp_path).open() as lines:
        for text in lines:
            first_line, table, expected, instructions = json.loads(text)
            raw = bytes.fromhex(table)
            wrong += [(text[:60], at) for at, line in expected if line_of(version, raw, first_line, at) != line]
            checked, objects = checked + instructions, objects + 1
    report.add("lines", name, f"{len(wrong)} wrong of {checked} instructions", str(objects))
    assert not wrong, wrong[:5]
    assert checked > 100_000


def _exported(subject: Subject, folder: Path) -> Path:
    place = subject.root / "tmp" if subject.root else folder
    script = Path(shutil.copy(_EXPORTER, place))
    exported = folder / "exported"
    with exported.open("w") as out:
        subprocess.run(subject.command("-W", "ignore", subject.inside(script), _ALL_FILES), stdout=out, check=True)
    return exported
