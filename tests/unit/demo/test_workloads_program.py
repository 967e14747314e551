"""How a program of the demo is started, wherever ingero itself was found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ingero.demo.workloads.program import module_environment

SOURCE = Path(__file__).resolve().parents[3] / "src"
# as the program of a release and of the image does it
ISOLATED = f"""
import sys
sys.path.insert(0, {str(SOURCE)!r})
from ingero.demo.workloads.program import module_environment
print(module_environment({{"PYTHONPATH": "/before"}})["PYTHONPATH"], module_environment({{}})["PYTHONPATH"])
"""


def test_the_children_of_an_isolated_python_find_the_package() -> None:
    done = subprocess.run([sys.executable, "-I", "-c", ISOLATED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"{SOURCE}:/before", str(SOURCE)]


def test_otherwise_nothing_is_added() -> None:
    assert module_environment({"A": "1"}) == {"A": "1"}
