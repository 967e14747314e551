"""Records the sample recordings of examples/recordings with real probes on the simulated GPU.

Each is a training loop with one fault, recorded by `ingero trace` as `ingero demo` does. Its steps take 50 ms and more,
so that the files stay small. A recording is kept only if its diagnosis is the fault's, and nothing else: on a host with
other work it is made again. Then names that belong to this host (paths, host name, other programs) are replaced.
Needs root, a kernel with BPF and a C compiler. Run: python tools/make_sample_recordings.py [NAME...] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import apsw

from ingero.demo.gpusim.build import build, environment
from ingero.demo.simulated_stage import SimulatedRun
from ingero.demo.stage import LIFE_S
from ingero.demo.stored_incidents import store_incidents
from ingero.demo.workloads.ddp import rank_path
from ingero.demo.workloads.host_knobs import HostKnobs, HostState
from ingero.demo.workloads.program import Program
from ingero.diagnose.diagnosis import diagnose
from ingero.store.reader import open_reader

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples" / "recordings"
WORKLOADS = ROOT / "src" / "ingero" / "demo" / "workloads"
JOB = "/srv/job"  # where the workloads seem to lie
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
_TRIES = 5
_ONE_IN = 1000  # ordinary calls has a row, beside all slow and rare ones
_KERNEL_THREADS = re.compile(
    r"(kworker|ksoftirqd|migration|rcu_|rcuc|swapper|idle|kcompactd|khugepaged|kswapd|irq/|cpuhp|jbd2|watchdogd)"
)
_OTHERS = "other"  # instead of the name of a program that happened to run


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample recording. causes: allowed in its diagnosis; the first is required. own: names of its programs."""

    causes: tuple[str, ...]
    play: Callable[[SampleRun], None]
    arguments: tuple[object, ...] = ()
    workload: str = "train"
    node: str = "gpu-node-01"
    own: tuple[str, ...] = ("python", "pt_data_worker")


class SampleRun(SimulatedRun):
    """A run whose loop has the arguments of a sample."""

    def __init__(self, folder: Path, sample: Sample) -> None:
        super().__init__(folder, say=print, watch_recording=lambda _path, _pid: None, python=Path(sys.executable))
        self.sample = sample
        self.pids: list[int] = []

    def begin(self) -> None:
        """Starts the loop and, when it has warmed up, its recording."""
        variables = {**os.environ, **environment(build(), ctl=self.knobs, sched="block", devices=2)}
        arguments = ["--seconds", LIFE_S, "--knob", self.host_knobs, "--out", os.devnull, *self.sample.arguments]
        if self.sample.workload == "ddp":
            for rank in range(2):
                HostKnobs(rank_path(self.host_knobs, rank)).write(HostState())
            arguments = [one for one in arguments if one not in ("--out", os.devnull)]
            arguments += ["--out", self.host_knobs.with_name("steps")]
        program = Program.module(self.sample.workload, *arguments, environment=variables)
        self._main = self._stack.enter_context(program)
        pid, *ranks = map(int, program.wait_for("ready"))
        self.pids = ranks or [pid]
        time.sleep(1.5)
        self.record_pids(*self.pids, options=("--node", self.sample.node, "--sampling-rate", str(_ONE_IN)))

    @contextmanager
    def changed(self, path: Path, **values: float) -> Iterator[None]:
        """Host knobs, changed for the block."""
        knobs = HostKnobs(path)
        before = knobs.change(**values)
        try:
            yield
        finally:
            knobs.write(before)


def _incident(run: SampleRun) -> None:
    """A backup with a high priority takes the CPUs."""
    run.begin()
    run.watch(3)
    with run.hogs(name="backup", per_cpu=2, nice=-14):
        run.watch(3)
    run.watch(0.5)


def _starved(run: SampleRun) -> None:
    """The data-loading worker decodes for longer than a step takes."""
    run.begin()
    run.watch(4)
    with run.changed(run.host_knobs, worker_cpu_ms=90):
        run.watch(3)


def _straggler(run: SampleRun) -> None:
    """The worker of rank 1 waits for its storage, and rank 0 for rank 1."""
    run.begin()
    run.watch(3.5)
    with run.changed(rank_path(run.host_knobs, 1), worker_sleep_ms=300):
        run.watch(2)


def _leak(run: SampleRun) -> None:
    """Runs a loop whose steps each keep a tensor."""
    with run.changed(run.host_knobs, leak_bytes=8 << 20):
        run.begin()
        run.watch(43)


_STEP = ("--workers", 1, "--us", 500)
SAMPLES: Mapping[str, Sample] = {
    "incident": Sample(
        causes=("priority",),
        play=_incident,
        arguments=("--workers", 1, "--us", 240),
        own=("python", "pt_data_worker", "backup"),
        node="demo",
    ),
    "starved-loop": Sample(causes=("data-starvation",), play=_starved, arguments=_STEP),
    "rank-straggler": Sample(
        causes=("nccl-straggler", "data-starvation"),
        play=_straggler,
        arguments=("--workers", 1, "--us", 1400),
        workload="ddp",
    ),
    "memory-leak": Sample(causes=("gpu-memory-leak",), play=_leak, arguments=("--workers", 1, "--us", 4000)),
}


def make(name: str, folder: Path) -> Path:
    """Records until the diagnosis is the sample's; writes it to the folder.

    Raises:
        SystemExit: this host had other trouble each time.
    """
    sample = SAMPLES[name]
    for _ in range(_TRIES):
        with tempfile.TemporaryDirectory(prefix="ingero-sample-") as scratch:
            with SampleRun(Path(scratch), sample) as run:
                sample.play(run)
                run.finish()
            clean(run.recording, sample, Path(scratch))
            causes = causes_of(run.recording)
            if causes and set(causes) <= set(sample.causes) and sample.causes[0] in causes:
                copy = folder / f"{name}.db"
                shutil.copyfile(run.recording, copy)
                return copy
            print(f"{name}: the diagnosis was {', '.join(causes) or 'empty'}; again")
    raise SystemExit(f"{name}: not {sample.causes[0]} alone in {_TRIES} tries; is this host busy with other work?")


def causes_of(path: Path) -> list[str]:
    """The causes in the diagnosis of a recording."""
    with open_reader(path) as reader:
        window = reader.window(None, 0)
        return [one.cause for one in diagnose(reader, window).incidents] if window else []


def clean(path: Path, sample: Sample, scratch: Path) -> None:
    """Replaces what belongs to this host, stores the incidents anew, and makes the file small.

    Raises:
        SystemExit: a text still holds a name of this host.
    """
    db = apsw.Connection(str(path))
    replaced = _Replacements(sample, scratch)
    db.create_scalar_function("clean", replaced.text, 1)
    db.create_scalar_function("clean_name", replaced.name, 1)
    with db:
        for table, column in text_columns(db):
            db.execute(f'UPDATE "{table}" SET "{column}" = clean("{column}")')
        names = (
            "SELECT culprit_name FROM raw_culprits UNION SELECT culprit_name FROM raw_offcpu UNION SELECT culprit_name "
        )
        names += "FROM raw_events UNION SELECT waker_name FROM raw_offcpu UNION SELECT waker_name FROM raw_wakers"
        db.execute(f"UPDATE raw_strings SET text = clean_name(text) WHERE string IN ({names})")
        db.execute(
            "UPDATE raw_sessions SET machine_id = 'sample', boot_id = 'sample', flags = 'trace --pid ' || pid_filter"
        )
        db.execute("UPDATE raw_sessions SET kernel = ?", (platform.release().partition("-")[0],))
        db.execute("DELETE FROM raw_incidents")
        db.execute("DELETE FROM raw_causal_chains")
    db.close()
    store_incidents(path)
    _shrink(path)
    _refuse_what_is_left(path, replaced)


def text_columns(db: apsw.Connection) -> list[tuple[str, str]]:
    """The text columns of the recorded tables."""
    tables = [
        str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB 'raw_*'")
    ]
    found = [
        (table, list(db.execute(f"SELECT name FROM pragma_table_info('{table}') WHERE type = 'TEXT'")))
        for table in tables
    ]
    return [(table, str(column)) for table, columns in found for (column,) in columns]


class _Replacements:
    """Replacements for the paths and names of this host."""

    def __init__(self, sample: Sample, scratch: Path) -> None:
        self.own = sample.own
        standard = Path(os.__file__).parent
        self.paths = (
            (str(scratch), "/tmp/job"),
            (f"{WORKLOADS}/minitorch", "/usr/lib/python3/dist-packages/minitorch"),
            (str(WORKLOADS), JOB),
            (str(build()), LIBRARIES),
            (str(standard), f"/usr/lib/python3.{sys.version_info.minor}"),
            (sys.executable, "python"),
            (str(Path(sys.executable).resolve()), "/usr/bin/python3"),
            (str(ROOT), JOB),
        )
        self.forbidden = {socket.gethostname(), str(ROOT), str(Path.home()), str(scratch), str(Path(sys.prefix))}
        self.forbidden -= {"", "/"}

    def text(self, value: str | None) -> str | None:
        """A text with the paths of the sample."""
        if not value:
            return value
        for old, new in self.paths:
            value = value.replace(old, new)
        value = re.sub(r"\S*/ld-\S*|/tmp/[\w.-]*ingero[\w./-]*", f"{JOB}/library", value)
        return re.sub(rf"(?<![\w-]){re.escape(socket.gethostname())}(?![\w-])", "demo", value)

    def name(self, value: str) -> str:
        """The name of a thread: the sample's own, or the kernel's."""
        is_known = value in self.own or _KERNEL_THREADS.match(value) or not value
        return value if is_known else _OTHERS


def _refuse_what_is_left(path: Path, replaced: _Replacements) -> None:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    for table, column in text_columns(db):
        for (value,) in db.execute(f'SELECT DISTINCT "{column}" FROM "{table}" WHERE "{column}" IS NOT NULL'):
            left = [one for one in replaced.forbidden if re.search(rf"(?<![\w-]){re.escape(one)}(?![\w-])", str(value))]
            if left:
                raise SystemExit(f"{path.name}: {table}.{column} still says {left[0]!r}: {str(value)[:200]!r}")
    db.close()


def _shrink(path: Path) -> None:
    """One file, without free pages; most pages of a small recording are nearly empty."""
    db = apsw.Connection(str(path))
    for setting in ("PRAGMA journal_mode = DELETE", "PRAGMA page_size = 1024", "VACUUM"):
        list(db.execute(setting))
    db.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes those that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *SAMPLES], metavar="NAME", help=", ".join(SAMPLES))
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="FOLDER")
    options = parser.parse_args(arguments)
    for name in options.names or SAMPLES:
        path = make(name, options.out)
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
