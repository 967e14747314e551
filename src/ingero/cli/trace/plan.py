"""The plan of a recording: what the settings make it attach, leave out and announce."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ingero.attach.host_events import HOST_PROGRAMS, IO, NET, TCP, HostProgram, missing_tracepoints
from ingero.attach.kernel_side import KernelSizes
from ingero.capture.budget.rehearsal import rehearsal_of
from ingero.capture.loop.recorder import RecorderOptions
from ingero.cli.config.settings import TraceSettings
from ingero.discover.gpus import known_nvml
from ingero.discover.kernel import KernelFacts
from ingero.discover.library_files import identify_all
from ingero.discover.python_walkers import Walker
from ingero.discover.readiness import root_fix, what_blocks
from ingero.errors import IngeroError
from ingero.ops import Library, Source
from ingero.program import again_as_root
from ingero.units import format_bytes

SHOWN_CALLS = 20  # a second, with --verbose: as many as can be read
PYTHON_LINES = "python_lines"  # as stored; readers write its words (serve/text/gap_lines.py)
_SOURCE_OF_GROUP = {IO: Source.IO, TCP: Source.TCP, NET: Source.NET}


class NotReadyError(IngeroError):
    """This machine, or what the agent may do on it, does not allow tracing."""


class GivenLibraryError(IngeroError):
    """A file of --cuda-lib cannot be probed."""


def refuse_if_blocked(kernel: KernelFacts, arguments: Sequence[str]) -> None:
    """Raises NotReadyError with what `ingero check` would say; `arguments` complete the command that fixes it."""
    blocked = what_blocks(kernel)
    if blocked is not None:
        fix = again_as_root(arguments) if blocked.fix == root_fix() else blocked.fix
        raise NotReadyError(f"cannot trace: {blocked.reason}", hint=fix)


def notices(settings: TraceSettings) -> Iterator[str]:
    """Messages for the user before the recording starts."""
    if settings.ring_bytes != settings.ringbuf_size:
        yield f"ring buffer: rounded up to {format_bytes(settings.ring_bytes)}, a power of two"
    if not settings.record:
        yield "no incident can be found without a recording: leave --record=false out to have findings"


def kernel_sizes(settings: TraceSettings) -> KernelSizes:
    """The sizes of the buffers in the kernel."""
    return KernelSizes(calls_bytes=settings.ring_bytes)


def host_programs(settings: TraceSettings) -> tuple[HostProgram, ...]:
    """The BPF programs that record host events, without those of groups that are switched off."""
    left_out = {group for group in _SOURCE_OF_GROUP if not getattr(settings, group)}
    return tuple(entry for entry in HOST_PROGRAMS if entry.group not in left_out)


def recorder_options(settings: TraceSettings) -> RecorderOptions:
    """The options of the recorder.

    Raises:
        GivenLibraryError: a given file cannot be probed.
        RehearsalError: a variable for tests of the overhead limiter has no meaning.
    """
    libraries = frozenset(Library) if settings.nccl else frozenset(Library) - {Library.NCCL}
    _check_given(settings, libraries)
    return RecorderOptions(
        pids=settings.pid,
        uid=settings.uid,
        launches_at_driver_only=settings.launches_at,
        libraries=libraries,
        given_files=settings.cuda_lib,
        deadband_percent=settings.deadband,
        heartbeat_s=settings.heartbeat,
        max_overhead_ratio=settings.max_overhead,
        max_cpu_ratio=settings.max_cpu,
        with_stacks=settings.stack,
        rehearsal=rehearsal_of(os.environ),
        shown_calls=SHOWN_CALLS if settings.verbose else 0,
    )


def not_traced(settings: TraceSettings, walker: Walker) -> dict[str, str]:
    """Sources that this recording cannot hold, with the reason: their absence does not mean zero."""
    found = {} if settings.nccl else {Source.NCCL.name: "switched off (nccl)"}
    missing = missing_tracepoints()
    for group, source in _SOURCE_OF_GROUP.items():
        needed = [entry.tracepoint for entry in HOST_PROGRAMS if entry.group == group]
        if not getattr(settings, group):
            found[source.name] = f"switched off ({group})"
        elif all(name in missing for name in needed):
            found[source.name] = f"this kernel has no tracepoint {needed[0]}"
    if settings.stack and not walker.is_kernel:
        found[PYTHON_LINES] = walker.reason
    if reason := known_nvml().reason:
        found["GPU"] = reason
    return found


def _check_given(settings: TraceSettings, libraries: frozenset[Library]) -> None:
    for path in settings.cuda_lib:
        try:
            kinds = {identity.library for identity in identify_all(path.resolve())}
        except OSError as error:
            raise GivenLibraryError(f"--cuda-lib: {path}: {error.strerror}", hint="name an existing file") from error
        except IngeroError as error:
            raise GivenLibraryError(f"--cuda-lib: {error}", hint=error.hint) from error
        if not kinds & libraries:
            raise GivenLibraryError(f"--cuda-lib: {path} is a copy of NCCL, which is switched off", hint="--nccl=true")
