"""Build hook of hatchling: puts BPF objects, the dashboard's page, commit and date into wheels and source archives.

A source archive carries all of them, so that installing it needs neither a compiler nor Node.js. An editable install
gets neither: there `make build` compiles, and git is asked.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_NOTE = {"wheel": "ingero/_build.txt", "sdist": "src/ingero/_build.txt"}  # ingero.build_info reads it


class BpfObjectsHook(BuildHookInterface[Any]):
    """Compiles for every machine that is supported, not only for this one."""

    PLUGIN_NAME = "custom"
    _scratch: TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """A compiler from the package index, where there is no other."""
        if self._is_source_archive:
            return []
        try:
            self._build_bpf["compiler"]()
        except SystemExit:
            return ["ziglang>=0.13"]
        return []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles and writes the note; `version` is `standard` or `editable`."""
        if version == "editable" or self._is_source_archive:
            return
        for machine in self._build_bpf["ARCHITECTURES"]:
            self._build_bpf["build"](machine, force=False)
        runpy.run_path(str(Path(self.root, "tools", "build_page.py")))["build"]()
        self._scratch = TemporaryDirectory(prefix="ingero-build-")
        note = Path(self._scratch.name) / "_build.txt"
        note.write_text(f"{_commit(self.root)} {_day()}\n")
        build_data["force_include"][str(note)] = _NOTE[self.target_name]

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  # hatchling's signature
        """Removes the note from the scratch folder; the archive has it."""
        if self._scratch:
            self._scratch.cleanup()

    @property
    def _is_source_archive(self) -> bool:
        return Path(self.root, "PKG-INFO").exists()

    @property
    def _build_bpf(self) -> dict[str, Any]:
        return runpy.run_path(str(Path(self.root, "tools", "build_bpf.py")))


def _commit(root: str) -> str:
    """Short hash, with `-dirty` if the tree differs from it; `unknown` outside a checkout."""
    command = ["git", "-C", root, "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _day() -> str:
    """Today in UTC, or the day that a reproducible build is told (SOURCE_DATE_EPOCH)."""
    moment = float(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    return time.strftime("%Y-%m-%d", time.gmtime(moment))
