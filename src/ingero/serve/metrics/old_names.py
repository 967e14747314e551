"""Metrics under their names of Ingero 0.x, as far as what they mean is measured here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ingero.serve.metrics import catalogue
from ingero.serve.metrics.catalogue import Kind, Metric
from ingero.serve.metrics.registry import Family, HistogramSum, Labels, Value
from ingero.store.histograms import percentiles

_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_CUDA_SOURCES = ("cuda", "driver", "cuda_graph")
_THROTTLES = {  # the original's names: NVML's reasons that make them
    "power": ("power cap", "power brake"),
    "thermal": ("thermal (software)", "thermal (hardware)"),
    "sw": ("application clocks", "sync boost", "display clock"),
    "hw": ("hardware slowdown",),
}
_SAME = {  # system_cpu_load_average_1m has kept its name
    "system_cpu_utilization": catalogue.CPU_UTILIZATION,
    "system_memory_utilization": catalogue.MEMORY_UTILIZATION,
    "system_memory_usage_available": catalogue.MEMORY_AVAILABLE,
}


def _metric(name: str, kind: Kind, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind=kind, unit="", text=text, labels=labels, is_old=True)


_DURATION = _metric("gpu_cuda_operation_duration_microseconds", Kind.GAUGE, "Percentiles since the recording began",
                    "source", "operation", "percentile")  # fmt: skip
_COUNT = _metric("gpu_cuda_operation_count", Kind.COUNTER, "Calls", "source", "operation")
_OVERFLOWS = _metric("ingero_ringbuf_overflows_total", Kind.COUNTER, "Records that found no room in a kernel buffer")
_COLLECTIVES = _metric("gpu_nccl_collective_count", Kind.COUNTER, "NCCL calls", "op_type")
_COLLECTIVE_BYTES = _metric("gpu_nccl_collective_bytes_total", Kind.COUNTER, "Bytes of NCCL calls", "op_type")
_GPU = {
    name: _metric(f"gpu_memory_{name}_bytes", Kind.GAUGE, "Device memory", "gpu_uuid")
    for name in ("used", "free", "total")
}
_THROTTLED = {
    name: _metric(f"gpu_throttle_{name}_active", Kind.GAUGE, "1 while clocks are lowered", "gpu_uuid")
    for name in _THROTTLES
}
_THROTTLINGS = {
    name: _metric(f"gpu_throttle_{name}_event_total", Kind.COUNTER, "Times that clocks began to be lowered, all GPUs")
    for name in _THROTTLES
}
_DATABASE = _metric("ingero_trace_db_bytes", Kind.GAUGE, catalogue.RECORDING_SIZE.text)
_PLAIN = {name: _metric(name, Kind.GAUGE, same.text) for name, same in _SAME.items()}
OLD_METRICS = (*_PLAIN.values(), _DURATION, _COUNT, _OVERFLOWS, _COLLECTIVES, _COLLECTIVE_BYTES, *_GPU.values(),
               *_THROTTLED.values(), *_THROTTLINGS.values(), _DATABASE)  # fmt: skip
LEFT_OUT = {  # the original's other names: why they are not offered
    "ingero_anomaly_count": "counted calls slower than three times the median; see `ingero_incidents_total`",
    "ingero_trace_db_pruned_rows_total": "not counted; `ingero_trace_db_bytes` shows what is left",
    "gpu_nccl_process_loaded": "named processes and paths",
    "gpu_nccl_processes_total": "not counted; query the recording",
    "gpu_nccl_collective_barrier_events": "clocks did not fit; a late rank is an incident (nccl-straggler)",
    "gpu_memory_fragmentation_estimate": "an estimate; fragmentation is an incident (gpu-memory-fragmentation)",
    "gpu_memory_process_allocated_bytes": "named processes; query the recording",
    "gpu_memcpy_bytes_total": "directions are not summed apart; see `ingero_call_bytes_total` by `op`",
    "gpu_memcpy_duration_ms": "directions are not summed apart; see `ingero_call_duration_seconds` by `op`",
    "gpu_memfrag_ioctl_event_total": "calls of the driver's ioctl are not traced",
    "gpu_kernel_launch_count": "named processes; see `ingero_calls_total`",
    "gpu_kernel_launch_threads_per_block": "named processes; sizes of launches are not summed",
    "gpu_kernel_launch_grid_blocks": "named processes; sizes of launches are not summed",
    "ingero_infer_*": "named processes and their streams; query the recording",
}


def under_old_names(families: Sequence[Family]) -> list[Family]:
    """The values of the families under their old names."""
    values = {family.metric: dict(family.points) for family in families}
    points: dict[Metric, dict[Labels, Value]] = defaultdict(dict)
    for metric, labels, value in (*_system(values), *_calls(values), *_gpus(values)):
        points[metric][labels] = value
    return [Family(metric, list(points[metric].items())) for metric in OLD_METRICS if metric in points]


_Values = dict[Metric, dict[Labels, Value]]
_Points = Iterator[tuple[Metric, Labels, Value]]


def _system(values: _Values) -> _Points:
    for name, metric in _SAME.items():
        for value in values.get(metric, {}).values():
            yield _PLAIN[name], (), value
    drops = values.get(catalogue.DROPS, {}).items()
    rings = [value for (counter,), value in drops if counter.endswith("_ring_full")]
    for value in values.get(catalogue.RECORDING_SIZE, {}).values():
        yield _DATABASE, (), value
    yield _OVERFLOWS, (), sum(value for value in rings if not isinstance(value, HistogramSum))


def _calls(values: _Values) -> _Points:
    for (source, op), count in values.get(catalogue.CALLS, {}).items():
        if source in _CUDA_SOURCES:
            yield _COUNT, (source, op), count
        elif source == "nccl":
            yield _COLLECTIVES, (op,), count
    for (source, op), size in values.get(catalogue.CALL_BYTES, {}).items():
        if source == "nccl":
            yield _COLLECTIVE_BYTES, (op,), size
    for (source, op), one in values.get(catalogue.CALL_DURATION, {}).items():
        if source in _CUDA_SOURCES and isinstance(one, HistogramSum) and one.counts.any():
            found = percentiles(one.counts, list(_QUANTILES.values()), max_ns=one.max_ns)
            for name, ns in zip(_QUANTILES, found, strict=True):
                yield _DURATION, (source, op, name), ns / 1000


def _gpus(values: _Values) -> _Points:
    begun = values.get(catalogue.GPU_SLOWDOWNS, {})
    for name, reasons in _THROTTLES.items():
        counts = [count for (reason, _), count in begun.items() if reason in reasons]
        if counts:
            yield _THROTTLINGS[name], (), sum(count for count in counts if not isinstance(count, HistogramSum))
    slowdowns = values.get(catalogue.GPU_SLOWDOWN, {})
    for number, uuid, _ in values.get(catalogue.GPU_INFO, {}):
        used = values.get(catalogue.GPU_MEMORY_USAGE, {}).get((number,))
        total = values.get(catalogue.GPU_MEMORY_LIMIT, {}).get((number,))
        if isinstance(used, int) and isinstance(total, int):
            yield _GPU["used"], (uuid,), used
            yield _GPU["free"], (uuid,), total - used
            yield _GPU["total"], (uuid,), total
        for name, reasons in _THROTTLES.items():
            known = [slowdowns[reason, number] for reason in reasons if (reason, number) in slowdowns]
            if known:
                yield _THROTTLED[name], (uuid,), int(any(known))
