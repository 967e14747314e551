"""What people met, made on the simulated GPU: for each case the facts that must be said, and whether they are.

The cases are programs that lie beside the checkout (their README says what each wants). They were written with words
and settings of an earlier build: what they call otherwise is put right in a copy, and they run at default settings. A
case may have several variants, each with facts of its own; a run is right where all wanted ones are said and none of
the others.

Run as root: python -m bench.live_cases [CASE ...] [--runs N] [--cases FOLDER] [--limited] [--list]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.agent import require_quiet_kernel
from bench.incidents.ambient import favored
from ingero.demo.faults import cgroups
from ingero.demo.gpusim.build import build, environment
from ingero.demo.workloads import lifecycle

_ROOT = Path(__file__).parents[1]
_CASES = _ROOT.parent / "shared/cases/live"
_KEEP = _ROOT / "build/live-cases"
_LONGEST_S = 150
# What the cases call by an earlier name.
_RENAMED = (
    (r"gpu-shared", "gpu-contention"),
    (r"--account\b", "--per-process"),
    (r'raw_processes", "SELECT pid, gpu_id', 'processes", "SELECT pid, gpu_id'),  # by `query`, which shows views only
)
_UNLIMITED = r'"--max-overhead", "0", "--max-cpu", "0",?|--max-overhead 0 --max-cpu 0'


def incident(causes: str) -> str:
    """A pattern of an incident of one of these causes, as `explain` prints it."""
    return rf"(?:LOW|MEDIUM|HIGH|CRITICAL) +(?:{causes}) +\["


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to run a case. wanted, never: patterns of what it must and must not say, with dots for line ends."""

    arguments: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the variant: its arguments."""
        return " ".join(self.arguments)

    def problems(self, said: str) -> list[str]:
        """What is lacking, or was said and must not be."""
        lacks = [f"lacks {one}" for one in self.wanted if not re.search(one, said, re.DOTALL)]
        return lacks + [f"says {one}" for one in self.never if re.search(one, said, re.DOTALL)]


_HANG = incident("host-hang")
_BUSY = incident("gpu-slower|gpu-contention|host-bound")
CASES: dict[str, tuple[Variant, ...]] = {
    "01-ordinal.py": (Variant(wanted=("gpu_uuid",), never=(incident("gpu-contention"),)),),
    "01b-gpu-shared-without-nvml.py": (
        Variant(wanted=(r"which GPU|not known|cannot be told",), never=(incident("gpu-contention"), r"\bMIG\b")),
    ),
    "02-sudo-leaves-out-root-containers.sh": (
        Variant(wanted=(r"1 CUDA process of root", r"--user (?:root|all)"), never=("no traced library is in use",)),
    ),
    "03-title-wipes-environment.py": (
        *(
            Variant(arguments=("early", pad), wanted=(r"\b1 +1 +2\b", r"slurm_job\n.*?\b77\b"))
            for pad in ("4000", "150")
        ),
        # nothing but the title and the driver's list tells
        *(Variant(arguments=("late", pad), wanted=(r"VLLM\S+ +1\b", r"GPU-\S+0001\b")) for pad in ("4000", "150")),
    ),
    "04-hang-outside-cuda.py": tuple(
        Variant(arguments=(what,), wanted=(_HANG, *wanted), never=(incident("host-bound"),))
        for what, *wanted in (
            ("pipe", r"waits for room in a pipe", r"04-hang\S*\.py:\d+"),
            ("fork", r"a lock in its own memory", r"04-hang\S*\.py:\d+"),
            ("lockfile", r"polls for something that does not come", r"04-hang\S*\.py:\d+"),
            ("flock", r"the lock of \S+/lock that \S+ \[\d+\] holds", r"04-hang\S*\.py:\d+"),
            ("dead", r"ended with code 0", r"04-hang\S*\.py:\d+"),
            ("stopped", r"is stopped", r"04-hang\S*\.py:\d+"),
        )
    ),
    "04b-worker-late-by-seconds.py": (
        Variant(
            arguments=("slow",), wanted=(incident("data-starvation"), r"dataset\.py:\d+", r"(?:8\d|9\d|100)% of it")
        ),
        Variant(arguments=("stopped",), wanted=(incident("stopped"), r"(?:8\d|9\d|100)% of it")),
    ),
    "05-page-fault-in-memcpy.py": tuple(
        Variant(
            arguments=(where,),
            wanted=(incident("major-page-faults|network-filesystem-wait|block-io|io-throttled"), *wanted),
            never=(incident("gpu-slower"), "the host did not cause it"),
        )
        for where, *wanted in (
            ("disk", r"05-page\S*\.py:\d+|cudaMemcpy", "whole|copy it"),
            ("fuse", r"05-page\S*\.py:\d+|cudaMemcpy", "whole|copy it"),
        )
    ),
    "06-static-nccl-beside-plugin.py": (
        # the case's own clock may be over before an agent on a busy machine has begun: found is what is asked
        Variant(
            wanted=(r"(?:libtorch_cuda\.so', 'libnccl'.*?){4}", r"ncclAllReduce +\d"),
            never=(r"'libnccl-\w+\.so', 'libnccl'",),
        ),
    ),
    "07-kernel-by-version.sh": (Variant(wanted=(r"kind of probe +ok",), never=("needs Linux 5.15", "MISSING")),),
    "09-same-rank-twice.py": tuple(
        Variant(arguments=(kind,), wanted=(r"ambiguous\? False",), never=("rank 0 waited for rank 0",))
        for kind in ("shell", "pod", "none")
    ),
    "10-mcp-arguments.py": (Variant(wanted=(r"\d+ tools",), never=(r"Traceback",)),),
    "11-slurm-sluid.py": tuple(
        Variant(
            arguments=(kind,),
            wanted=(incident("cpu-contention|noisy-neighbor"), r"Slurm job 78", r"Move Slurm job 78 .*suspend it"),
            never=(r"slurmstepd\.scope +\S*Quota",),
        )
        for kind in ("sluid", "classic")
    ),
    "13-threads-as-cpus.py": (
        Variant(wanted=(incident("cpu-throttled"), r"OMP_NUM_THREADS", r"\b1[67] threads"), never=()),
    ),
    "14-python-replaced.sh": (Variant(wanted=(r"Python 3\.11", r"train\.py:\d+"), never=(r"no Python\b",)),),
    "15-wal-grows-while-somebody-reads.py": tuple(
        Variant(arguments=(who, "45s"), wanted=(*wanted, r"exit 0"), never=())
        for who, *wanted in (("none",), ("foreign", r"keep|held|reader"), ("query",), ("stopped",))
    ),
    "18-init-hangs.py": (
        Variant(wanted=(incident("nccl-hang"), r"rank 1 has not (?:come|been seen)", r"ncclCommInitRank"), never=()),
    ),
    "19-vm-called-container.py": (Variant(wanted=(r"virtual machine|VM ", r"win10"), never=(r"container \S*qemu",)),),
    "20-otlp.py": (
        Variant(
            wanted=(
                r"URL with path as option: exit 0, received \[\('/api/v1/otlp/v1/metrics'",
                r"ENDPOINT alone: exit 0, received \[\('/api/v1/otlp/v1/metrics'",
                r"METRICS_ENDPOINT with --otlp: exit \d",
                r"delta: exit 0, received \[.*?\{1\}",
                r"node's own address: exit 0, received \[\(",
            ),
        ),
    ),
    "22-mount-busy.py": (
        Variant(wanted=(r"(?:nobody has ever used it|(?:1|4|10) s later, nobody uses it): unmounted",)),
    ),
    "24-ctranslate2-stubs.py": (
        Variant(wanted=(r"ncclAllReduce\D+40\b",), never=(r"'libctranslate2\.so\.4', 'libnccl'",)),
    ),
    "29-polling-server.py": (Variant(wanted=("",), never=(incident("host-bound|data-starvation|host-hang"),)),),
    "30-first-launch-compiles.py": tuple(
        Variant(arguments=(what,), wanted=(r"cold-start",), never=(incident("hung-call"),))
        for what in ("launch", "module")
    ),
    "31-mismatch-sampled-away.py": tuple(
        Variant(arguments=(what,), wanted=(incident("nccl-mismatch"), *wanted), never=("a device or a link hangs",))
        for what, *wanted in (
            ("op", "ncclAllGather", "ncclAllReduce"),
            ("size", r"rank \d calls ncclAllReduce of [\d.]+ \w+ float32, but rank \d calls ncclAllReduce of"),
            ("order", r"order|first"),
        )
    ),
    "32-gil-in-cuda-call.py": (
        Variant(
            wanted=(incident("gil"), r"cudaStreamSynchronize", r"32-gil\S*\.py:\d+"),
            never=(r"CRITICAL +hung-call +\[",),
        ),
    ),
    "35-nvml-holds-the-driver.py": (
        Variant(
            wanted=(r"driver-lock", r"ingero"),
        ),
    ),
    "37-copied-without-wal.sh": (Variant(wanted=(r"lacks|without its log|-wal",), never=("holds no recording yet",)),),
    "40-worker-ends-by-sigbus.py": (
        Variant(wanted=(_HANG, r"SIGBUS|signal 7", r"/dev/shm"), never=("No incidents found",)),
    ),
    "41-unusual-pythons.sh": (
        Variant(
            wanted=tuple(
                rf"== {name}:.*?lines in explain --stacks: [1-9]"
                for name in ("plain", "loader", "static-3.10-named-python")
            )
        ),
    ),
    "44-stub-in-the-search-path.py": (
        Variant(wanted=(r"would be probed:",), never=(r"would be probed:.*(?:stubs/libcuda|418\.74)",)),
    ),
}


_APP = """import ctypes, time
library, pointer = ctypes.CDLL("libcudart.so.12"), ctypes.c_void_p()
def step():
    library.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(4096))
    library.cudaFree(pointer)
    library.cudaDeviceSynchronize()
while True:
    step()
    time.sleep(0.01)
"""


def _prepare(folder: Path) -> None:
    """What the cases of unusual Pythons want to find: a loop, and an interpreter of another name."""
    (folder / "app.py").write_text(_APP)
    for program in sorted(Path.home().glob(".pyenv/versions/3.10.*/bin/python3.10"))[:1]:
        for name in ("python", "python3.10"):
            shutil.copy(program, folder / name)


def run(case: Path, variant: Variant, folder: Path, *, is_limited: bool) -> str:
    """What a case says; killed with all that it has started where it takes too long."""
    script = folder / "live" / case.name
    script.parent.mkdir(exist_ok=True)
    (folder / "inputs").symlink_to(case.parent.parent / "inputs")
    text = case.read_text()
    for old, new in _RENAMED:
        text = re.sub(old, new, text)
    script.write_text(text if is_limited else re.sub(_UNLIMITED, "", text))
    interpreter = "bash" if case.suffix == ".sh" else sys.executable
    agent = Path(sys.executable).with_name("ingero")
    variables = {
        **os.environ,
        **environment(build(), ctl=folder / "knobs", sched="block", devices=2),
        "PYTHONPATH": os.pathsep.join(map(str, (_ROOT / "src", _ROOT))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "INGERO_RUN_DIR": str(folder),
        "CASE_DIR": str(folder),
        "PY": sys.executable,
        "ING": str(agent),
        "TESTS": str(_ROOT),
        "MAIN": str(_ROOT),
        "W": str(folder),
    }
    _prepare(folder)
    with subprocess.Popen(
        [interpreter, script, *variant.arguments],
        cwd=_ROOT,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said = f"{process.communicate()[0]}\n(took longer than {_LONGEST_S} s)"
        finally:
            with suppress(ProcessLookupError):  # what it has left behind
                os.killpg(process.pid, signal.SIGKILL)
    return said


def planned(names: Sequence[str]) -> Iterator[tuple[str, Variant]]:
    """Each variant of the cases that begin with one of the names; without any, all."""
    for case, variants in CASES.items():
        for variant in variants:
            if not names or any(f"{case} {variant.name}".startswith(name) for name in names):
                yield case, variant


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs them, prints for each what is wrong, and how many are right; 1 if one is not."""
    parser = argparse.ArgumentParser(prog="live_cases", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="CASE", help="begin of a case's name, with its argument if you like"
    )
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--cases", type=Path, default=_CASES, help="where they lie")
    parser.add_argument("--limited", action="store_true", help="as they were written: nothing limits the agent")
    parser.add_argument("--list", action="store_true", help="say what would run")
    options = parser.parse_args(arguments)
    chosen = list(planned(options.names))
    if options.list:
        print(*(f"{case} {variant.name}" for case, variant in chosen), sep="\n")
        return 0
    require_quiet_kernel()
    _KEEP.mkdir(parents=True, exist_ok=True)
    right = 0
    with lifecycle.until_stopped(), nullcontext() if cgroups.missing("cpu") else favored():
        for case, variant in chosen:
            results = [_once(options.cases / case, variant, number, options) for number in range(options.runs)]
            right += sum(results)
    print(f"\n{right} of {options.runs * len(chosen)} runs right")
    return 0 if right == options.runs * len(chosen) else 1


def _once(case: Path, variant: Variant, number: int, options: argparse.Namespace) -> bool:
    if not case.exists():
        print(f"{case.name} {variant.name}: not here", flush=True)
        return False
    folder = Path(tempfile.mkdtemp(prefix="case-"))
    folder.chmod(0o755)
    began_s = time.monotonic()
    try:
        said = run(case, variant, folder, is_limited=options.limited)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    (_KEEP / f"{case.stem}{'.' if variant.name else ''}{'-'.join(variant.arguments)}.{number}.txt").write_text(said)
    problems = variant.problems(said)
    took_s = time.monotonic() - began_s
    print(f"{'right' if not problems else 'WRONG'}  {case.name} {variant.name}  ({took_s:.0f} s)", flush=True)
    for problem in problems:
        print(f"         {problem}", flush=True)
    return not problems


if __name__ == "__main__":
    sys.exit(main())
