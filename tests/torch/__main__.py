"""`make test-torch`: trains with the real PyTorch wheel, then records that and compares it with what was called.

Usage: python -m tests.torch [arguments of pytest]. Without root it only trains.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_STEPS = "20"
_LIMIT_S = 900  # of a test


def main() -> int:
    """Command line."""
    subprocess.run([_HERE / "run.sh", "--steps", _STEPS], check=True, env={**os.environ, "PYTHON": sys.executable})
    if os.geteuid():
        print("test-torch: it trains; recording it needs root: sudo make test-torch")
        return 0
    command = [sys.executable, "-m", "pytest", "-q", "-s", f"--timeout={_LIMIT_S}", _HERE, *sys.argv[1:]]
    return subprocess.run(command, env={**os.environ, "INGERO_TEST_TORCH": "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
