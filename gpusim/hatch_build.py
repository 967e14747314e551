"""Build hook of hatchling: compiles the simulated GPU for one machine, this one or $INGERO_WHEEL, into its wheel."""

from __future__ import annotations

import os
import platform
import runpy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SimulatedGpuHook(BuildHookInterface[Any]):
    """Only wheels are made of it: a source archive of ingero has the sources."""

    PLUGIN_NAME = "custom"
    _scratch: TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  # hatchling's signature
        """Compiles, and names what was made."""
        machine = os.environ.get("INGERO_WHEEL") or platform.machine()
        self._scratch = TemporaryDirectory(prefix="ingero-gpusim-")
        tool = self._tool("build_gpusim")
        for path, name in tool["build"](machine, Path(self._scratch.name)).items():
            build_data["force_include"][str(path)] = f"ingero_gpusim/{name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_{tool['GLIBC'].replace('.', '_')}_{machine}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  # as above
        """Removes the scratch folder, and a wheel that is not what it should be."""
        if self._scratch:
            self._scratch.cleanup()
        self._tool("check_wheel")["refuse_faults"](Path(artifact_path))

    def _tool(self, name: str) -> dict[str, Any]:
        return runpy.run_path(str(Path(self.root).parent / "tools" / f"{name}.py"))
