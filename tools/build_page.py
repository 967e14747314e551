"""Builds the page of `ingero dashboard` from `web/` with Node.js and npm, if it is older than its sources.

Without them, or without the packages that they fetch, it says so and goes on: the dashboard then answers to machines
only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "web"
PAGE = ROOT / "src" / "ingero" / "serve" / "dashboard" / "page"
_LEAST_NODE = 18
_NPM = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")


def build() -> bool:
    """Builds what is older than its sources; answers whether there is a page afterwards."""
    made = PAGE / "index.html"
    if made.exists() and made.stat().st_mtime >= _newest():
        return True
    reason = _missing()
    if reason:
        print(f"the dashboard's page is not built: {reason} (apt-get install nodejs npm)", file=sys.stderr)
        return made.exists()
    if not _are_packages_there() and subprocess.run(_NPM, check=False, cwd=SOURCES).returncode:
        print(
            "the dashboard's page is not built: npm could not install its packages (web/package.json)", file=sys.stderr
        )
        return made.exists()
    subprocess.run(("npm", "run", "--silent", "build"), check=True, cwd=SOURCES, stdout=subprocess.DEVNULL)
    os.utime(made)
    print(f"built {PAGE.relative_to(ROOT)}")
    return True


def _missing() -> str:
    """Why it cannot be built; empty: it can."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return "it needs Node.js and npm"
    version = subprocess.run((node, "--version"), capture_output=True, text=True, check=False).stdout.strip()
    major = re.match(r"v(\d+)", version)
    if major is None or int(major[1]) < _LEAST_NODE:
        return f"it needs Node.js {_LEAST_NODE} or newer; this is {version or 'none'}"
    return ""


def _are_packages_there() -> bool:
    installed = SOURCES / "node_modules" / ".package-lock.json"
    return installed.exists() and installed.stat().st_mtime >= (SOURCES / "package-lock.json").stat().st_mtime


def _newest() -> float:
    files = [path for path in SOURCES.rglob("*") if "node_modules" not in path.parts and path.is_file()]
    return max(path.stat().st_mtime for path in files)


if __name__ == "__main__":
    build()
