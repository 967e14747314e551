"""Small profiles in every format, as their tools write them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw

from ingero.profiles.kineto import read_kineto
from ingero.profiles.model import Notes, Profile

Event = dict[str, Any]

BASE_NS = 1_751_410_836_000_000_000  # of new Kineto files
STEP_US = 1000.0
PID, MAIN, BACKWARD = 4100, 4100, 4101
STEPS = 6
KERNELS = ("void at::native::elementwise<float>(int)", "sm90_gemm")
EPOCH_NS = 1_779_782_330_176_752_435  # of Nsight files


def event(category: str, name: str, ts: float, dur: float, *, tid: int | str = MAIN, **args: object) -> Event:
    """A complete event of a thread."""
    return {"ph": "X", "cat": category, "name": name, "pid": PID, "tid": tid, "ts": ts, "dur": dur, "args": args}


def call(name: str, ts: float, dur: float, correlation: int, *, tid: int | str = MAIN, kind: str = "runtime") -> Event:
    """A call of the CUDA runtime or driver."""
    return event(f"cuda_{kind}", name, ts, dur, tid=tid, correlation=correlation)


def kernel(name: str, ts: float, dur: float, correlation: int, **args: object) -> Event:
    """A kernel on stream 7 of device 0."""
    found = event("kernel", name, ts, dur, device=0, stream=7, correlation=correlation, **args)
    return found | {"pid": 0, "tid": 7}


def copy(name: str, ts: float, dur: float, correlation: int, size: int, *, stream: int = 7) -> Event:
    """A copy between host and device."""
    found = event("gpu_memcpy", name, ts, dur, device=0, stream=stream, correlation=correlation, bytes=size)
    return found | {"pid": 0, "tid": stream}


def training(steps: int = STEPS) -> list[Event]:
    """A loop of four launches and a pageable copy a step, with marks, data loading, operators and Python functions."""
    found: list[Event] = [
        {"ph": "M", "name": "process_name", "pid": PID, "tid": 0, "ts": 0, "args": {"name": "python3"}},
        {"ph": "M", "name": "thread_name", "pid": PID, "tid": MAIN, "ts": 0, "args": {"name": "thread 4100 (pt_main)"}},
        call("cudaDeviceSynchronize", 5, 30, 1),  # the profiler's own
    ]
    for step in range(steps):
        at, number = 100 + step * STEP_US, 100 * (step + 1)
        found.append(event("user_annotation", f"ProfilerStep#{step + 3}", at, STEP_US - 10))
        loading = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        found.append(event("user_annotation", loading, at + 10, 300))
        found.append(event("python_function", "train.py(88): step", at, STEP_US - 10))
        found.append(event("python_function", "nn.Module: Net_0", at + 310, 500))
        found.append(event("python_function", "torch/nn/modules/module.py(1501): _call_impl", at + 311, 480))
        found.append(event("python_function", "<built-in method linear of type object at 0x7f00>", at + 312, 470))
        found.append(call("cudaMemcpyAsync", at + 320, 60, number))
        found.append(copy("Memcpy HtoD (Pageable -> Device)", at + 340, 35, number, 4096))
        for launch in range(4):
            begin = at + 400 + 50 * launch
            found.append(event("cpu_op", "aten::linear", begin, 20))
            found.append(event("cpu_op", "aten::addmm", begin + 2, 15))
            found.append(call("cudaLaunchKernel", begin + 5, 8, number + 1 + launch))
            found.append(call("cuLaunchKernel", begin + 7, 4, number + 1 + launch, kind="driver"))
            found.append(kernel(KERNELS[launch % 2], begin + 20, 40, number + 1 + launch))
    return found


def busy_training(steps: int = 40) -> list[Event]:
    """A loop whose host is always ahead of a GPU that is never idle: nothing is wrong with it."""
    found: list[Event] = []
    for step in range(steps):
        for launch in range(4):
            at, number = STEP_US * step + 10 * launch, 4 * step + launch + 1
            found.append(call("cudaLaunchKernel", at, 6, number))
            found.append(kernel(KERNELS[launch % 2], 20 + STEP_US * step + 250 * launch, 249, number))
    return found


def new_trace(events: Sequence[Event] | None = None, **properties: object) -> bytes:
    """A file as PyTorch writes it since 2024: properties before and after the events."""
    before = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 85018279936}]}
    before |= {"distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2}, "cuda_runtime_version": 12040}
    after = {"traceName": "trace.json", "baseTimeNanoseconds": BASE_NS} | properties
    whole = before | {"traceEvents": list(training() if events is None else events)} | after
    return json.dumps(whole, indent=2).encode()


def old_trace() -> bytes:
    """A file of 2021: whole us of the unix clock, other categories, threads as texts, stacks at operators."""
    names = {"cuda_runtime": "Runtime", "kernel": "Kernel", "gpu_memcpy": "Memcpy", "cpu_op": "Operator"}
    names |= {"user_annotation": "Operator"}
    events = []
    for one in training():
        if one.get("cat") in ("python_function", "cuda_driver"):
            continue
        old = one | {"ts": 1_623_142_623_000_000 + int(one["ts"]), "tid": str(one["tid"])}
        if "cat" in one:
            old |= {"cat": names[one["cat"]], "dur": int(one["dur"])}
        if one.get("name") == "aten::linear":
            old["args"] = {"Call stack": "/env/site-packages/torch/nn/linear.py(94): forward;train.py(88): step;..."}
        if one.get("cat") in ("kernel", "gpu_memcpy"):
            old["tid"] = f"stream {one['tid']}"
        events.append(old)
    return json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()


def read(data: bytes, *, chunk_bytes: int = 1 << 16, notes: Notes | None = None) -> list[Profile]:
    """The processes of a Kineto file, read in chunks."""
    chunks = (data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes))
    return read_kineto(chunks, "trace.json", notes or Notes())


def database(path: Path, tables: Mapping[str, tuple[str, Iterable[Sequence[object]]]]) -> Path:
    """An SQLite file: columns and rows by table."""
    db = apsw.Connection(str(path))
    with db:
        for name, (columns, rows) in tables.items():
            db.execute(f"CREATE TABLE {name}({columns})")
            marks = ",".join("?" * len(columns.split(",")))
            db.executemany(f"INSERT INTO {name} VALUES({marks})", [tuple(row) for row in rows])  # type: ignore[arg-type]
    db.close()
    return path


Tables = dict[str, tuple[str, Iterable[Sequence[object]]]]


def nsight_tables(*, steps: int = STEPS, processes: int = 2) -> Tables:
    """The tables of an export with two processes that do the same, each on its GPU."""
    strings = {
        1: "cudaLaunchKernel_v7000",
        2: "cudaMemcpyAsync_v3020",
        3: "cudaStreamSynchronize_v3020",
        4: "gemm<int>",
    }
    strings |= {5: "main thread", 6: "elementwise(float*)", 7: "data_loading"}
    tables: dict[str, list[tuple[object, ...]]] = {name: [] for name in ("calls", "kernels", "copies", "syncs", "nvtx")}
    for process in range(processes):
        pid = (1 << 56) | ((300 + process) << 24)
        thread = pid | (300 + process)
        for step in range(steps):
            at, number = 1_000_000 * step, 10 * step
            for launch in range(3):
                begin = at + 10_000 * launch
                tables["calls"].append((begin, begin + 5_000, thread, number + launch, 1))
                named = 4 if launch % 2 else 6
                tables["kernels"].append((begin + 6_000, begin + 9_000, process, 7, number + launch, pid, named, named))
            tables["calls"].append((at + 40_000, at + 60_000, thread, number + 5, 2))
            tables["copies"].append((at + 45_000, at + 59_000, process, 7, number + 5, pid, 256, 2, 2, 0))
            tables["calls"].append((at + 70_000, at + 90_000, thread, number + 6, 3))
            tables["syncs"].append((at + 70_000, at + 90_000, process, 7, number + 6, pid, 3))
            tables["nvtx"].append((at, at + 9_000, 59, None, 7, thread))
            tables["nvtx"].append((at + 10_000, at + 30_000, 59, "aten::addmm, op_id = 7", None, thread))
            tables["nvtx"].append((at + 11_000, None, 34, "a mark", None, thread))
    work = "start, end, deviceId, streamId, correlationId, globalPid"
    return {
        "StringIds": ("id, value", list(strings.items())),
        "CUPTI_ACTIVITY_KIND_RUNTIME": ("start, end, globalTid, correlationId, nameId", tables["calls"]),
        "CUPTI_ACTIVITY_KIND_KERNEL": (f"{work}, demangledName, shortName", tables["kernels"]),
        "CUPTI_ACTIVITY_KIND_MEMCPY": (f"{work}, bytes, copyKind, srcKind, dstKind", tables["copies"]),
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (f"{work}, syncType", tables["syncs"]),
        "NVTX_EVENTS": ("start, end, eventType, text, textId, globalTid", tables["nvtx"]),
        "ThreadNames": ("nameId, globalTid", [(5, (1 << 56) | (300 << 24) | 300)]),
        "PROCESSES": ("globalPid, name", [((1 << 56) | (300 << 24), "torchrun")]),
        "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs", [(EPOCH_NS,)]),
        "TARGET_INFO_SYSTEM_ENV": ("name, value", [("Hostname", "node-7"), ("CpuCores", "18")]),
        "TARGET_INFO_GPU": (
            "id, name, totalMemory, uuid, busLocation",
            [(0, "NVIDIA A100", 84990623744, "cf6b97c0", "0000:c1:00.0")],
        ),
    }


def older_nsight_tables() -> Tables:
    """An export of 2021: one process, no globalPid, no kinds of memory, no syncs."""
    tables = nsight_tables(processes=1)
    kernels = [(*row[:5], *row[6:]) for row in tables["CUPTI_ACTIVITY_KIND_KERNEL"][1]]
    copies = [(*row[:5], *row[6:8]) for row in tables["CUPTI_ACTIVITY_KIND_MEMCPY"][1]]
    work = "start, end, deviceId, streamId, correlationId"
    kept = {name: tables[name] for name in ("StringIds", "CUPTI_ACTIVITY_KIND_RUNTIME")}
    return kept | {
        "CUPTI_ACTIVITY_KIND_KERNEL": (f"{work}, demangledName, shortName", kernels),
        "CUPTI_ACTIVITY_KIND_MEMCPY": (f"{work}, bytes, copyKind", copies),
    }


def rpd_tables(steps: int = STEPS) -> Tables:
    """The tables of an RPD file: HIP calls, operations of the GPU, a range of roctx."""
    strings = ["", "hipLaunchKernel", "hipMemcpyWithStream", "hipStreamSynchronize", "KernelExecution", "gemm_kernel"]
    strings += ["CopyDeviceToHost", "UserMarker", "forward pass"]
    calls: list[tuple[int, ...]] = []
    work: list[tuple[int, ...]] = []
    links: list[tuple[int, int, int]] = []
    copies: list[tuple[int, ...]] = []
    for step in range(steps):
        at, number = 1_000_000 * (step + 1), 10 * (step + 1)
        calls.append((number, 9, 9, at, at + 5_000, 1, 0))
        work.append((number, 0, 3, at + 6_000, at + 50_000, 5, 4))
        calls.append((number + 1, 9, 9, at + 10_000, at + 70_000, 2, 0))
        work.append((number + 1, 0, 3, at + 55_000, at + 69_000, 0, 6))
        copies.append((number + 1, 512, 0))
        links += [(number, number, number), (number + 1, number + 1, number + 1)]
        calls.append((number + 2, 9, 9, at + 80_000, at + 90_000, 3, 0))
        calls.append((number + 3, 9, 9, at, at + 100_000, 7, 8))
    return {
        "rocpd_string": ("id, string", list(enumerate(strings))),
        "rocpd_api": ("id, pid, tid, start, end, apiName_id, args_id", calls),
        "rocpd_op": ("id, gpuId, queueId, start, end, description_id, opType_id", work),
        "rocpd_api_ops": ("id, api_id, op_id", links),
        "rocpd_copyapi": ("api_ptr_id, size, pinned", copies),
    }
