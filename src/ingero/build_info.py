"""Version, commit and build date; the last two are written into the package when it is built."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from ingero import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildInfo:
    """Build of this copy. commit: short hash, or `unknown`; date: ISO 8601 day, or `unknown`."""

    version: str
    commit: str
    date: str


def build_info() -> BuildInfo:
    """The build information of this copy; a source checkout asks git."""
    written = Path(__file__).with_name("_build.txt")
    if written.exists():
        commit, date = written.read_text().split()
        return BuildInfo(version=__version__, commit=commit, date=date)
    commit, date = _from_git()
    return BuildInfo(version=__version__, commit=commit, date=date)


def _from_git() -> tuple[str, str]:
    folder = Path(__file__).resolve().parent
    command = ["git", "-C", str(folder), "log", "-1", "--format=%h %cs", "--", "."]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown", "unknown"
    commit, _, date = answer.stdout.strip().partition(" ")
    return commit or "unknown", date or "unknown"
