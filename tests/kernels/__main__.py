"""`make test-kernels`: boots each kernel, runs the suites in it, and prints what passed, failed or was skipped.

Usage: python -m tests.kernels [--suite NAME]... [GUEST]...
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.kernels import arm64, machine
from tests.kernels.archives import CACHE, ROOT
from tests.kernels.guests import GUESTS, SUITES, Guest
from tests.kernels.report import Outcome, failures, read_outcome, skips, table

_NEEDED = {  # program or file -> Debian package
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "cpio": "cpio",
    "debootstrap": "debootstrap",
    "mkfs.ext4": "e2fsprogs",
    "depmod": "kmod",
    "zstd": "zstd",
    "qemu-system-aarch64": "qemu-system-arm",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
    "/usr/aarch64-linux-gnu/include/stdio.h": "libc6-dev-arm64-cross",  # which the compiler only recommends
}
TREE = CACHE / "tree"
_SUITE_LIMIT_S = 1500  # ten times what the longest needs without an accelerator on an idle machine
_TEST_LIMIT_S = 600
_STALE_CODE = "int3: 0000"  # QEMU 7.2: an emulated CPU may run the breakpoint that another has just replaced


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.kernels", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("guests", nargs="*", metavar="GUEST", help=f"of {', '.join(one.name for one in GUESTS)}")
    parser.add_argument("--suite", action="append", choices=list(SUITES), help="only this one (may be repeated)")
    parser.add_argument("--keyword", default="", help="only the tests that match, as pytest's -k")
    options = parser.parse_args()
    if unknown := set(options.guests) - {one.name for one in GUESTS}:
        parser.error(f"no guest {', '.join(sorted(unknown))}")
    _install_programs()
    _build_programs()
    chosen = [one for one in GUESTS if not options.guests or one.name in options.guests]
    results: dict[str, dict[str, Outcome]] = {}
    for guest in chosen:
        suites = [name for name in guest.suites if not options.suite or name in options.suite]
        results[guest.name] = _run(guest, suites, options.keyword)
        print(failures(results[guest.name]), end="", flush=True)
    print(table(results, list(SUITES)))
    print(skips(results))
    return int(any(outcome.is_bad for row in results.values() for outcome in row.values()))


def _install_programs() -> None:
    missing = [package for name, package in _NEEDED.items() if not _has(name)]
    if missing:
        print(f"kernels: installing {' '.join(missing)}", flush=True)
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            sys.exit(f"kernels: needed: sudo apt-get install {' '.join(missing)}")


def _has(name: str) -> bool:
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return Path(name).exists() if name.startswith("/") else bool(shutil.which(name, path=path))


def _build_programs() -> None:
    """What the tests would compile, compiled here: the guests find it in the cache, and Python's bytecode too."""
    code = (
        "from ingero.demo.gpusim.build import build; from ingero.demo.workloads import native; build();"
        "[native.build(name) for name in ('calls', 'unwinding', 'sandboxed', 'forker')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    folders = ["src", "tests", str(Path(sys.prefix) / "lib")]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *folders], check=False, cwd=_copy_tree())


def _copy_tree() -> Path:
    """The guests run a copy: who goes on editing does not disturb them."""
    shutil.rmtree(TREE, ignore_errors=True)
    for part in ("src", "tests", "bench"):
        shutil.copytree(ROOT / part, TREE / part, symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", TREE)
    return TREE


def _run(guest: Guest, suites: Sequence[str], keyword: str) -> dict[str, Outcome]:
    kernel = machine.fetch(guest)
    work = CACHE / "runs" / guest.name
    shutil.rmtree(work, ignore_errors=True)
    print(f"kernels: {guest.name}: booting Linux {kernel.release} ({machine.accelerator()})", flush=True)
    begin = time.monotonic()
    script = "\n".join(_suite_command(name, keyword) for name in suites)
    limit_s = _SUITE_LIMIT_S * len(suites)
    if guest.machine == "aarch64":
        console = arm64.boot(kernel, TREE, work, limit_s=limit_s)
    else:
        console = machine.boot(kernel, script, work, limit_s=limit_s, parameters=guest.parameters)
    if _STALE_CODE in console:
        print(f"kernels: {guest.name}: the emulator ran replaced code; again, with CPUs that take turns", flush=True)
        options = {"parameters": guest.parameters, "cpus_take_turns": True}
        console = machine.boot(kernel, script, work, limit_s=limit_s, **options)
    took_s = time.monotonic() - begin
    if f"booted {kernel.release}" not in console:
        print(f"kernels: {guest.name} did not boot:\n{console[-2000:]}", flush=True)
    outcomes = {name: read_outcome(work / "share", name) for name in suites}
    print(f"kernels: {guest.name}: {took_s:.0f} s; logs in {work / 'share'}", flush=True)
    return outcomes


def _suite_command(name: str, keyword: str) -> str:
    plugins = "-p no:cacheprovider -p pytest_timeout"  # others take a minute to be imported on an emulated processor
    options = [f"--junitxml='/share/{name}.xml'", "-o", f"timeout={_TEST_LIMIT_S}", plugins, "-s"]
    chosen = f"-k '{keyword}'" if keyword else ""
    command = f"python -m pytest {' '.join(SUITES[name])} {' '.join(options)} {chosen} --basetemp=/disk/pytest"
    limited = f"timeout -k 5 {_SUITE_LIMIT_S} {sys.prefix}/bin/{command}"
    variables = f"PYTHONPATH={TREE}/src PYTEST_DISABLE_PLUGIN_AUTOLOAD=1"
    return f"cd {TREE} && {variables} {limited} > '/share/{name}.log' 2>&1"


if __name__ == "__main__":
    sys.exit(main())
