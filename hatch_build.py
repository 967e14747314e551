"""Build hook of hatchling: puts BPF objects, the dashboard's page, commit and date into wheels and source archives.

A wheel is of one machine: this one, or $INGERO_WHEEL (x86_64, aarch64), which also brings libbpf and libelf and then
runs on any distribution with glibc 2.17 or newer. The simulated GPU of `ingero demo` is a package of its own (gpusim/);
only a wheel of this machine, as `make install` makes it, has its sources instead. A source archive carries the objects
of every machine, so that installing it needs neither a compiler nor Node.js. An editable install gets neither: there
`make build` compiles, and git is asked.
"""

from __future__ import annotations

import json
import os
import platform
import runpy
import shutil
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_NOTE = {"wheel": "ingero/_build.txt", "sdist": "src/ingero/_build.txt"}  # ingero.build_info reads it
_ZIG, _DEFLATE = "ziglang==0.17.1", "deflate==0.9.0"  # others make other bytes
_VARIABLE = "INGERO_WHEEL"
_BUILD_VARIABLE = "INGERO_BUILD"  # commit and date, where git cannot be asked


class BpfObjectsHook(BuildHookInterface[Any]):
    """Compiles for every machine that is meant, not only for this one."""

    PLUGIN_NAME = "custom"
    _scratch: TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """A compiler from the package index, where there is no other, and for libraries that any glibc can open."""
        if self._portable:
            return [_ZIG, _DEFLATE]
        if self._is_source_archive:
            return []
        try:
            self._tool("build_bpf")["compiler"]()
        except SystemExit:
            return ["ziglang>=0.13"]
        return []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles and writes the note; `version` is `standard` or `editable`."""
        if version == "editable":
            return
        self._scratch = TemporaryDirectory(prefix="ingero-build-")
        scratch = Path(self._scratch.name)
        if not self._is_source_archive:
            self._build(scratch, build_data)
        if self.target_name == "wheel":
            self._make_of_one_machine(scratch, build_data)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  # hatchling's signature
        """Removes the scratch folder (the archive has what was in it), and a wheel that is not what it should be."""
        if self._scratch:
            self._scratch.cleanup()
        if self._portable:
            self._tool("pack_wheel")["repack"](Path(artifact_path))
            self._tool("check_wheel")["refuse_faults"](Path(artifact_path))

    @property
    def _portable(self) -> str:
        return os.environ.get(_VARIABLE, "") if self.target_name == "wheel" else ""

    @property
    def _is_source_archive(self) -> bool:
        return Path(self.root, "PKG-INFO").exists()

    def _tool(self, name: str) -> dict[str, Any]:
        return runpy.run_path(str(Path(self.root, "tools", f"{name}.py")))

    def _build(self, scratch: Path, build_data: dict[str, Any]) -> None:
        tool = self._tool("build_bpf")
        machines = [self._portable or platform.machine()] if self.target_name == "wheel" else tool["ARCHITECTURES"]
        for machine in machines:
            tool["build"](machine, force=False)
        self._tool("build_page")["build"]()
        note = scratch / "_build.txt"
        commit, _, date = os.environ.get(_BUILD_VARIABLE, "").partition(" ")
        note.write_text(f"{commit or _commit(self.root)} {date[:10] or _day()}\n")
        build_data["force_include"][str(note)] = _NOTE[self.target_name]
        if self.target_name == "sdist":
            build_data["artifacts"].append("src/ingero/bpf/objects/*/*.bpf.o")

    def _make_of_one_machine(self, scratch: Path, build_data: dict[str, Any]) -> None:
        machine = self._portable or platform.machine()
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{f'manylinux_2_17_{machine}' if self._portable else f'linux_{machine}'}"
        for path in sorted(Path(self.root, "src", "ingero", "bpf", "objects", machine).glob("*.bpf.o")):
            stripped = scratch / path.name
            shutil.copy(path, stripped)
            self._tool("build_bpf")["strip"](stripped, required=bool(self._portable))
            stripped.write_bytes(self._tool("bpf_lines")["without_lines"](stripped.read_bytes()))
            build_data["force_include"][str(stripped)] = f"ingero/bpf/objects/{machine}/{path.name}"
        if self._portable:
            self._bring_libraries(machine, scratch, build_data)
        else:
            self._bring_sources_of_demo(build_data)

    def _bring_sources_of_demo(self, build_data: dict[str, Any]) -> None:
        source = Path(self.root, "src")
        for path in sorted((source / "ingero" / "demo").rglob("*")):
            if path.suffix in {".c", ".cpp", ".h", ".txt"}:
                build_data["force_include"][str(path)] = str(path.relative_to(source))

    def _bring_libraries(self, machine: str, scratch: Path, build_data: dict[str, Any]) -> None:
        tool = self._tool("build_libraries")
        folder = tool["build"](machine)
        for name in tool["LIBRARIES"]:
            build_data["force_include"][str(folder / name)] = f"ingero/attach/libbpf/bundled/{name}"
        metadata = f"ingero-{self.metadata.version}.dist-info"
        own = {path.read_bytes() for path in Path(self.root, "src", "ingero", "bpf").glob("LICENSE*")}
        for name in tool["LICENSES"]:
            if (folder / name).read_bytes() in own:  # GPL-2.0, which is also that of the BPF programs
                continue
            build_data["force_include"][str(folder / name)] = f"{metadata}/licenses/bundled/{name}"
        bill = scratch / "bundled.cdx.json"
        bill.write_text(json.dumps(tool["bill_of_materials"](), indent=2) + "\n")
        build_data["sbom_files"].append(str(bill))


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
