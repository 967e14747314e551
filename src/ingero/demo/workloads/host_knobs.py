"""Disturbances on the host side that a running workload picks up from a small file."""

from dataclasses import dataclass, fields, replace
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """What the workload does to itself.

    `worker_sleep_ms` before each item of the DataLoader, `worker_cpu_ms` more to decode, and `item_bytes` sent through
    the workers' pipe with it. `stall_ms` in the training thread, every `stall_every`-th step; `gil_duty` is the share
    (0-1) of time in which the `--gil-hog` thread wants the interpreter; `lock_ms` is how long the `--lock-hog` thread
    holds the lock of the metrics each time; `native_threads` compute without the interpreter. The rest is what
    `callbacks.py` does in each step, or in each N-th (`_every`). `sequence` multiplies --sequence; `copy_bytes` more
    are copied to a real GPU in each step.
    """

    worker_sleep_ms: float = 0.0
    worker_cpu_ms: float = 0.0
    item_bytes: float = 0
    stall_ms: float = 0.0
    stall_every: float = 1
    gil_duty: float = 0.0
    lock_ms: float = 0.0
    native_threads: float = 0
    metrics_ms: float = 0.0
    item_every: float = 0
    collect_every: float = 0
    checkpoint_every: float = 0
    leak_bytes: float = 0
    reshape_bytes: float = 0
    sequence: float = 1.0
    copy_bytes: float = 0.0


class HostKnobs:
    """The file behind a `HostState`: lines of `name value`, replaced as a whole, read anew at each use."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> HostState:
        """Return the present state; the defaults where there is no file, and for names it does not have."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return HostState()
        values = dict(line.split(maxsplit=1) for line in text.splitlines())
        return HostState(**{f.name: float(values[f.name]) for f in fields(HostState) if f.name in values})

    def write(self, state: HostState) -> None:
        """Publish a state; readers see the old one or the new one, never half of it."""
        draft = self.path.with_name(self.path.name + ".new")
        draft.write_text("".join(f"{f.name} {getattr(state, f.name)}\n" for f in fields(state)))
        draft.replace(self.path)

    def change(self, **values: float) -> HostState:
        """Change some values, keep the others; return the state before."""
        before = self.read()
        self.write(replace(before, **values))
        return before
