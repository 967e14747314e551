"""The table of metrics: names, kinds, units and labels, from which every output and docs/metrics.md are made.

Names and units follow OpenTelemetry's semantic conventions where they have any ("System metrics", "Hardware metrics");
those for Prometheus are made from them by the rules of its OTLP receiver.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

_SUFFIXES = {"s": "_seconds", "By": "_bytes", "1": "_ratio", "Hz": "_hertz", "W": "_watts", "Cel": "_celsius"}
_HW = ("hw.id",)


class Kind(enum.Enum):
    """The kind of a metric: how its values are to be read."""

    COUNTER = "counter"  # only grows, from the start of the recording
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Metric:
    """One metric. unit: UCUM, as OTLP has it. is_old: the original's name, which gets no suffix.

    Metrics are compared by identity, because they are looked up thousands of times a second.
    """

    name: str
    kind: Kind
    unit: str
    text: str
    labels: tuple[str, ...] = ()
    is_old: bool = False

    @property
    def prometheus_name(self) -> str:
        """The metric's name in the Prometheus text format."""
        name = self.name.replace(".", "_")
        if self.is_old:
            return name
        suffix = _SUFFIXES.get(self.unit, "")
        if suffix == "_ratio" and self.kind is not Kind.GAUGE:
            suffix = ""
        name = name if name.endswith(suffix) else name + suffix
        return f"{name}_total" if self.kind is Kind.COUNTER else name

    @property
    def prometheus_labels(self) -> tuple[str, ...]:
        """The metric's labels in the Prometheus text format."""
        return tuple(label.replace(".", "_") for label in self.labels)


def _counter(name: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind=Kind.COUNTER, unit=unit, text=text, labels=labels)


def _gauge(name: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind=Kind.GAUGE, unit=unit, text=text, labels=labels)


CALL_DURATION = Metric(
    name="ingero.call.duration",
    kind=Kind.HISTOGRAM,
    unit="s",
    text="Durations of outermost calls that returned",
    labels=("source", "op"),
)
CALLS = _counter("ingero.calls", "{call}", "Outermost calls that returned, also those without a duration",
                 "source", "op")  # fmt: skip
CALL_ERRORS = _counter("ingero.call.errors", "{call}", "Outermost calls that returned an error", "source", "op")
CALL_NESTED = _counter("ingero.call.nested", "{call}", "Calls made by other traced calls", "source", "op")
CALL_BYTES = _counter("ingero.call.bytes", "By", "Bytes that calls copied, allocated or sent", "source", "op")
RECORDS = _counter("ingero.records", "{record}", "Calls recorded one by one")
THREAD_TIME = _counter("ingero.thread.time", "s", "Time of the traced threads by state: on a CPU (run), or why not",
                       "state")  # fmt: skip
SWITCHES = _counter("ingero.thread.switches", "{switch}", "Context switches of the traced threads")
PREEMPTIONS = _counter("ingero.thread.involuntary_switches", "{switch}", "Of these, involuntary ones")
STEPS = _counter("ingero.steps", "{step}", "Steps of the traced processes, found by repetition in their calls; both: "
                 "their stream was synced", "how")  # fmt: skip
STEP_TIME = _counter("ingero.step.time", "s", "Time of these steps: the host's own, or blocked for the GPU", "part")
SYNCS = _counter("ingero.syncs", "{sync}", "GPU syncs of the traced processes that ended a stream's sync interval")
SYNC_TIME = _counter("ingero.sync_interval.time", "s", "Time from one GPU sync of a stream to the next, over all "
                     "streams: GPU idle, busy, or done and the sync not returned", "part")  # fmt: skip
HOST_EVENTS = _counter("ingero.host.events", "{event}", "Host events of the traced processes, and of all others",
                       "source", "op", "scope")  # fmt: skip
HOST_BYTES = _counter("ingero.host.bytes", "By", "Bytes of these events", "source", "op", "scope")
HOST_TIME = _counter("ingero.host.time", "s", "Time that these events took", "source", "op", "scope")
LOST_TIME = _counter("ingero.lost_time", "s",
                     "Time lost by cause, end to end, of each incident's worst affected process", "cause")  # fmt: skip
INCIDENTS = _counter("ingero.incidents", "{incident}", "Incidents opened, with the severity that they had then",
                     "cause", "severity")  # fmt: skip
ACTIVE_INCIDENTS = _gauge("ingero.active_incidents", "{incident}", "Ongoing incidents", "cause", "severity")
DROPS = _counter("ingero.dropped", "{drop}",
                 "Dropped or corrected, by counter; those in _ns count nanoseconds", "counter")  # fmt: skip
TRACED_PROCESSES = _gauge("ingero.traced_processes", "{process}", "Traced processes")
THREADS = _gauge("ingero.threads", "{thread}", "Their threads")
CALLS_IN_FLIGHT = _gauge("ingero.in_flight_calls", "{call}", "Calls in flight for over a second")
OVERHEAD = _gauge("ingero.overhead", "1", "What tracing took of the busiest traced thread in the last second")
AGENT_CPU = _counter("ingero.agent.cpu.time", "s", "CPU time of ingero itself, while it recorded")
AGENT_MEMORY = _gauge("ingero.agent.memory.peak", "By", "Peak resident memory of ingero itself")
RECORDING_SIZE = _gauge("ingero.recording.size", "By", "Size of the recording's database with its write-ahead log")
LEVEL = _gauge("ingero.overhead.level", "{level}", "How much the overhead limiter leaves out; 0: everything is traced")
DROPPED = _counter("ingero.metrics.dropped", "{second}", "Seconds and findings that are missing from these metrics")
REFUSED_SCRAPES = _counter("ingero.metrics.refused_scrapes", "{scrape}", "Scrapes refused: too many at a time")
FAILED_PUSHES = _counter("ingero.metrics.failed_pushes", "{push}", "Pushes that the OTLP receiver did not accept")

CPU_UTILIZATION = _gauge("system.cpu.utilization", "1", "Busy share of all CPUs")
LOAD_1M = _gauge("ingero.system.load_average.1m", "{task}", "Tasks running or in uninterruptible sleep")
MEMORY_UTILIZATION = _gauge("system.memory.utilization", "1", "Share of memory that is not available")
MEMORY_AVAILABLE = _gauge("system.memory.linux.available", "By", "Memory that programs can get without swapping")
MEMORY_LIMIT = _gauge("system.memory.limit", "By", "Memory of the host")
SWAP_USED = _gauge("system.paging.usage", "By", "Swap in use", "system.paging.state")
PRESSURE = _counter("ingero.system.pressure.time", "s", "Time in which some or all tasks waited for a resource (PSI)",
                    "resource", "share")  # fmt: skip

GPU_INFO = _gauge("ingero.gpu.info", "", "1 for each GPU, with its UUID and model", *_HW, "uuid", "model")
GPU_UTILIZATION = _gauge("hw.gpu.utilization", "1", "Share of the time in which any kernel ran", *_HW)
GPU_MEMORY_BUSY = _gauge("ingero.gpu.memory.busy", "1", "Share of the time in which device memory was accessed", *_HW)
GPU_MEMORY_USAGE = _gauge("hw.gpu.memory.usage", "By", "Device memory in use, of all processes", *_HW)
GPU_MEMORY_LIMIT = _gauge("hw.gpu.memory.limit", "By", "Device memory", *_HW)
GPU_MEMORY_UTILIZATION = _gauge("hw.gpu.memory.utilization", "1", "Share of device memory in use", *_HW)
GPU_POWER = _gauge("hw.power", "W", "Power that the GPU draws", "hw.type", *_HW)
GPU_TEMPERATURE = _gauge("hw.temperature", "Cel", "Temperature of the GPU", "hw.type", *_HW)
GPU_CLOCK = _gauge("ingero.gpu.clock", "Hz", "Clock of the multiprocessors", *_HW)
GPU_SLOWDOWN = _gauge("ingero.gpu.slowdown", "{reason}", "1 while this reason lowers the clocks, otherwise 0",
                      "reason", *_HW)  # fmt: skip
GPU_SLOWDOWNS = _counter("ingero.gpu.slowdowns", "{slowdown}", "Times that this reason began to lower the clocks, "
                         "sampled once per second", "reason", *_HW)  # fmt: skip

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
