"""F1, F4: hosts of one name that stay two, and lists of nodes as people write them."""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.fleet_rows.figures import Figure, listed, run
from bench.fleet_rows.files import counts, rows
from ingero.demo.workloads import native
from ingero.fleet.discovery.ask import discovery
from ingero.fleet.node_lists import expand, parse_nodes
from ingero.store.merge import merge
from tests.integration.slurm_cluster import PROGRAMS, slurm_cluster
from tests.integration.targets import simulation, wait_for_end, waiting
from tests.integration.tracing import tracing
from tests.unit.fake_cluster import kubeconfig, pod, serving_api
from tests.unit.fleet_nodes import make_certificates, serving_node

_HOST = "gpu-01"
_NAMES, _MAX_MS = 10_000, 100
_LISTS = 1000
_NODES = 8


def two_hosts_of_one_name(folder: Path) -> Iterator[Figure]:
    """F1: an agent in each of two UTS namespaces with one host name, a machine id and a boot id of its own each."""
    paths = [_recorded(folder / f"{number}", number) for number in range(2)]
    sessions = [rows(path, "SELECT node, machine_id, boot_id FROM sessions")[0] for path in paths]
    yield Figure(
        f"names: {[node for node, *_ in sessions]}, machine ids that differ: {sessions[0][1] != sessions[1][1]}",
        [node for node, *_ in sessions] == [_HOST] * 2 and sessions[0][1] != sessions[1][1],
    )
    done = merge(paths, folder / "both.db")
    calls = "SELECT node, count(*) FROM events GROUP BY 1 ORDER BY 1"
    alone, both = [rows(path, calls)[0][1] for path in paths], rows(folder / "both.db", calls)
    lost = sum(alone) - sum(count for _, count in both)
    yield Figure(f"merge: {done.notes[0]}; {sum(alone):,} calls, {lost} lost", lost == 0 and len(both) == 2)
    tables = counts(paths[0]) + counts(paths[1])
    fewer = {name: tables[name] - count for name, count in counts(folder / "both.db").items() if count != tables[name]}
    yield Figure(
        f"tables with fewer rows than both: {fewer} (equal texts and stacks are one)", not fewer.keys() - _ONCE
    )
    with ExitStack() as stack:
        nodes = [stack.enter_context(serving_node(path, has_tls=False)) for path in paths]
        asked = run("query", "--nodes", listed(nodes), "--no-tls", "--csv", calls)
    notes = [line for line in asked.stderr.splitlines() if "call themselves" in line]
    yield Figure(f"query --nodes: {asked.stdout.split()[1:]}; {notes}", sorted(asked.stdout.split()[1:]) == sorted(
        f"{node},{count}" for node, count in both) and bool(notes))  # fmt: skip


_ONCE = {"raw_strings", "raw_stacks", "raw_kernels"}


def _recorded(folder: Path, number: int) -> Path:
    folder.mkdir()
    for name in ("machine-id", "boot-id"):
        text = f"{number + 1}{'0' * 31}"
        is_boot = name == "boot-id"
        (folder / name).write_text(f"{text[:8]}-{text[8:12]}-4000-8000-{text[20:]}\n" if is_boot else f"{text}\n")
    script = (
        f"hostname {_HOST} && mount --bind {folder}/machine-id /etc/machine-id && "
        f'mount --bind {folder}/boot-id /proc/sys/kernel/random/boot_id && exec "$@"'
    )
    within = ("unshare", "--uts", "--mount", "sh", "-c", script, "sh")
    with (
        waiting(simulation(folder / "program"), [native.build("sandboxed"), 2]) as process,
        tracing(folder, pids=[process.pid], options=["--record-all"], within=within) as tracer,
    ):
        process.go().finish()
        wait_for_end(tracer)
    return tracer.database


def lists(folder: Path) -> Iterator[Figure]:
    """F4: how long 10,000 names take, what ClusterShell makes of the same lists, Slurm and Kubernetes."""
    duration_ms = min(_duration_ms(f"gpu[00001-{_NAMES}]") for _ in range(5))
    yield Figure(f"{_NAMES:,} names in {duration_ms:.0f} ms, at most {_MAX_MS}", duration_ms <= _MAX_MS)
    if importlib.util.find_spec("ClusterShell"):
        node_set = importlib.import_module("ClusterShell.NodeSet").NodeSet
        rng = random.Random(4)
        texts = [_list(rng) for _ in range(_LISTS)]
        equal = sum(sorted(set(expand(text))) == sorted(node_set(text)) for text in texts)
        names = sum(len(expand(text)) for text in texts)
        yield Figure(
            f"{equal:,} of {_LISTS:,} random lists are what NodeSet makes of them ({names:,} names)", equal == _LISTS
        )
        duration_s = time.process_time()
        list(node_set(f"gpu[00001-{_NAMES}]"))
        yield Figure(f"NodeSet takes {(time.process_time() - duration_s) * 1e3:.0f} ms for {_NAMES:,} names", True)
    else:
        yield Figure("ClusterShell is not installed: not compared", False)
    yield _of_kubernetes(folder)
    if all(map(shutil.which, PROGRAMS)):
        yield _of_slurm()
    else:
        yield Figure("no Slurm is here (apt-get install slurm-wlm)", False)


def _duration_ms(text: str) -> float:
    begin_s = time.process_time()
    found = parse_nodes([text])
    duration_ms = (time.process_time() - begin_s) * 1e3
    assert len(found) == _NAMES
    return duration_ms


def _list(rng: random.Random) -> str:
    """A node list of one to four words: plain names, ranges with and without zeros, steps, and two brackets."""
    return ",".join(_word(rng) for _ in range(rng.randrange(1, 5)))


def _word(rng: random.Random) -> str:
    name = rng.choice(("gpu", "n", "rack-a-", "dgx."))
    between = ("n", "-")  # NodeSet takes no bracket directly behind another
    text = name + rng.choice(between).join(_bracket(rng) for _ in range(rng.choice((0, 1, 1, 1, 2))))
    return text + rng.choice(("", "", "-ib", ".example")) if "[" in text else f"{name}{rng.randrange(100)}"


def _bracket(rng: random.Random) -> str:
    width = rng.choice((0, 0, 2, 3, 4))
    parts = []
    for _ in range(rng.randrange(1, 4)):
        first = rng.randrange(0, 90)
        last = first + rng.randrange(0, 10)
        step = rng.choice(("", "", "", "/2", "/3"))
        parts.append(f"{first:0{width}}" if last == first else f"{first:0{width}}-{last:0{width}}{step}")
    return f"[{','.join(parts)}]"


def _of_kubernetes(folder: Path) -> Figure:
    certificates = make_certificates(folder / "certificates")
    with serving_api(certificates) as api:
        api.pods += [pod(f"gpu-{number}", f"10.0.0.{number}", app="ingero") for number in range(1, _NODES + 1)]
        path = kubeconfig(folder / "kubeconfig", api, certificates, {"token": api.token})
        found = parse_nodes(["k8s:gpu/app=ingero"], discovery({"KUBECONFIG": str(path)}, folder))
    names = [node.host for node in found]
    return Figure(f"k8s:gpu/app=ingero of an API of our own: {len(names)} of {_NODES}", len(names) == _NODES)


def _of_slurm() -> Figure:
    with slurm_cluster(nodes=_NODES) as slurm:
        job = slurm.run("sbatch", "--parsable", f"-N{_NODES}", "--output=/dev/null", "--wrap", "sleep 30").strip()
        environ = {**os.environ, "SLURM_CONF": str(slurm.configuration)}
        slurm.wait_until_running(job)
        found = parse_nodes([f"slurm:{job}"], discovery(environ, Path("/nowhere")))
        slurm.run("scancel", job)
    return Figure(
        f"slurm:{job} of a real Slurm with {_NODES} slurmd: {', '.join(map(str, found))}", len(found) == _NODES
    )
