"""capture.processes: what is written of a process that ends while it is looked at."""

from __future__ import annotations

import os

import pytest

from ingero.capture.host.gpus import GpuRows
from ingero.capture.processes import process_rows as processes
from ingero.capture.processes.callers import CallerLocations
from ingero.capture.processes.cgroup_rows import CgroupRows
from ingero.capture.processes.process_rows import ProcessRows
from ingero.capture.processes.traced_processes import TracedProcess
from ingero.discover.cgroups import Cgroup
from ingero.discover.memory_files import Environ, LaunchedWith, MemoryFiles
from ingero.discover.processes import Process, ProcessId, read_process
from ingero.discover.ranks import Membership
from ingero.store.writing import tables
from ingero.store.writing.tables import Value
from tests.unit.capture.test_cgroup_rows import MemorySink


class Memory(MemoryFiles):
    """Of a process that loses it after the first look: the environment and the command line go together."""

    def __init__(self) -> None:
        super().__init__()
        self._is_there = True

    def launched_with(self, pid: int) -> LaunchedWith:
        del pid
        was_there, self._is_there = self._is_there, False
        return LaunchedWith(b"RANK=3\0WORLD_SIZE=8\0", b"") if was_there else LaunchedWith(b"", b"")


def test_a_process_that_ends_between_two_looks_is_not_written_without_its_rank() -> None:
    memory, sink = Memory(), MemorySink()
    me = read_process(os.getpid())
    assert me is not None
    traced_process = TracedProcess(
        slot=1, id=me.id, number=1, start_ns=1, name="worker", callers=CallerLocations(me.id.pid)
    )
    rows = ProcessRows(sink, CgroupRows(sink), GpuRows(sink, ()), memory=memory)
    rows.write(traced_process, 2)
    traced_process.is_described = False
    rows.write(traced_process, 3)
    written = [row for table, row in sink.rows if table is tables.PROCESSES]
    assert [(row["rank"], row["world_size"]) for row in written] == [(3, 8), (3, 8)]


class Looks(MemoryFiles):
    """What a look at a process finds; each of its parts may change from look to look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.is_withheld = False
        self.environs: dict[int, tuple[dict[str, str], Environ]] = {}
        self.cmdline: tuple[str, ...] = ("python", "train.py")
        self.cgroup = "/"
        monkeypatch.setattr(processes, "read_process", self._process)
        monkeypatch.setattr(processes, "read_cgroup", lambda _pid, _mounts: Cgroup(id=7, path=self.cgroup, paths={}))
        monkeypatch.setattr(processes, "is_alive", lambda _id, **_: True)
        self.sink = MemorySink()
        self.rows = ProcessRows(self.sink, CgroupRows(self.sink), GpuRows(self.sink, ()), memory=self)
        self.traced_processes: dict[int, TracedProcess] = {}

    def _process(self, pid: int, stat_of: object) -> Process:
        del stat_of
        return Process(
            id=ProcessId(pid, 1),
            name="python",
            uid=0,
            ppid=1 if pid == 1000 else 1000,
            state="R",
            threads=1,
            is_kernel_thread=False,
        )

    def launched_with(self, pid: int) -> LaunchedWith:
        if self.is_withheld:
            return LaunchedWith(None, None, is_withheld=True)
        environ, state = self.environs.get(pid, ({}, Environ.UNREADABLE))
        raw = "".join(f"{name}={value}\0" for name, value in environ.items()).encode()
        begins = {Environ.UNREADABLE: None, Environ.EMPTY: b"", Environ.WIPED: b"\0\0", Environ.WHOLE: b""}[state]
        return LaunchedWith(None if begins is None else begins + raw, "\0".join((*self.cmdline, "")).encode())

    def traced_process(
        self, number: int, environ: dict[str, str] | None, state: Environ = Environ.WHOLE
    ) -> TracedProcess:
        """A process that is looked at; its pid is 1000 more than its number."""
        pid = 1000 + number
        self.environs[pid] = (environ or {}, state)
        traced_process = TracedProcess(
            slot=number, id=ProcessId(pid, 1), number=number, start_ns=1, name="python", callers=CallerLocations(pid)
        )
        self.traced_processes[number] = traced_process
        return traced_process

    def write(self, *traced_processes: TracedProcess) -> None:
        for traced_process in traced_processes:
            self.rows.write(traced_process, 2)

    def note_communicators(self, **places: tuple[int, int, int]) -> None:
        """p1=(hash, rank, nranks): process 1 is that rank of a communicator."""
        members = {
            int(name[1:]): [Membership(comm_id_hash=comm, rank=rank, nranks=nranks)]
            for name, (comm, rank, nranks) in places.items()
        }
        self.rows.note_communicators(members, self.traced_processes, 3)

    def row(self, number: int) -> dict[str, Value]:
        """The newest row of a process."""
        rows = [row for table, row in self.sink.rows if table is tables.PROCESSES and row["process"] == number]
        return rows[-1]

    def rank(self, number: int) -> tuple[Value, Value, Value]:
        row = self.row(number)
        return row["rank"], row["local_rank"], row["world_size"]


RANK_1 = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}


def test_a_title_that_wipes_the_environment_leaves_what_was_known(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    traced_process = looks.traced_process(1, RANK_1)
    looks.write(traced_process)
    looks.environs[1001], looks.cmdline = ({}, Environ.WIPED), ("a title",)
    looks.rows.on_exec(traced_process)
    traced_process.is_described = False
    looks.write(traced_process)
    assert looks.rank(1) == (1, 1, 2)
    assert (looks.row(1)["scheduler"], looks.row(1)["job"], looks.row(1)["job_step"]) == ("slurm", "77", "0")
    assert looks.row(1)["cmdline"] == "a title"
    assert traced_process.identity == "rank 1 of 2, Slurm job 77 step 0"


def test_a_fork_behind_a_title_is_what_its_parent_was(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    parent, child = looks.traced_process(1, RANK_1), looks.traced_process(2, None, Environ.WIPED)
    looks.write(parent)
    looks.rows.on_fork(child, parent)
    looks.write(child)
    assert looks.rank(2) == (1, 1, 2)
    assert looks.row(2)["job"] == "77"


def test_a_program_with_another_environment_is_another_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    traced_process = looks.traced_process(1, RANK_1)
    looks.write(traced_process)
    looks.environs[1001] = ({"PATH": "/usr/bin"}, Environ.WHOLE)
    looks.rows.on_exec(traced_process)
    traced_process.is_described = False
    looks.write(traced_process)
    assert looks.rank(1) == (None, None, None)
    assert not looks.row(1).get("job")


def test_of_a_wiped_environment_the_parent_tells_the_job_and_the_title_the_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = Looks(monkeypatch)
    looks.environs[1000] = ({"SLURM_JOB_ID": "77", "RANK": "3", "WORLD_SIZE": "8"}, Environ.WHOLE)
    looks.cmdline = ("VLLM::Worker_TP1",)
    looks.write(looks.traced_process(1, None, Environ.WIPED))
    assert (looks.row(1)["job"], looks.row(1)["rank"]) == ("77", 1)  # the parent's rank is the parent's
    assert looks.row(1)["rank_source"] == "title"


def test_a_title_that_comes_later_tells_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    traced_process = looks.traced_process(1, {"PATH": "/usr/bin"})
    looks.write(traced_process)
    assert looks.row(1)["rank"] is None
    looks.cmdline = ("sglang::scheduler_TP1",)
    for _ in range(10):
        looks.rows.look_again([traced_process], 5)
    assert (looks.row(1)["rank"], traced_process.rank) == (1, 1)


@pytest.mark.parametrize(
    "said",
    [{}, {"RANK": "0", "WORLD_SIZE": "2"}, {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "1"}],
    ids=["nothing", "the pod's", "the shell's"],
)
def test_the_communicator_knows_better_than_the_environment(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, str]
) -> None:
    looks = Looks(monkeypatch)
    looks.write(*(looks.traced_process(number, {"PATH": "/usr/bin"} | said) for number in (1, 2)))
    looks.note_communicators(p1=(5, 0, 2), p2=(5, 1, 2))
    assert [looks.rank(number)[0] for number in (1, 2)] == [0, 1]
    assert [looks.rank(number)[2] for number in (1, 2)] == [2, 2]
    assert {looks.row(number)["rank_source"] for number in (1, 2)} == {"communicator"}


def test_two_that_say_the_same_rank_have_none_until_a_communicator_parts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = Looks(monkeypatch)
    looks.write(*(looks.traced_process(number, {"RANK": "0", "WORLD_SIZE": "2"}) for number in (1, 2)))
    looks.rows.note_communicators(
        {1: [], 2: []}, looks.traced_processes, 3
    )  # created before tracing began: their places are not known
    assert [looks.row(number)["rank"] for number in (1, 2)] == [None, None]
    assert looks.row(1)["rank_source"] == "ambiguous: 2 processes say rank 0"
    looks.note_communicators(p1=(5, 0, 2), p2=(5, 1, 2))
    assert [looks.row(number)["rank"] for number in (1, 2)] == [0, 1]


def test_a_group_of_some_ranks_is_not_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    looks.write(looks.traced_process(1, {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}))
    looks.note_communicators(p1=(5, 1, 2))
    assert looks.rank(1) == (5, 1, 8)
    looks.note_communicators(p1=(6, 5, 8))
    assert looks.rank(1) == (5, 1, 8)
    assert looks.row(1)["rank_source"] == "communicator"


def test_a_data_loaders_worker_has_the_rank_that_its_trainer_turned_out_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    said = {"RANK": "0", "WORLD_SIZE": "2"}
    trainer, worker = looks.traced_process(1, said), looks.traced_process(2, said)
    looks.write(trainer)
    looks.rows.on_fork(worker, trainer)
    looks.write(worker)
    looks.note_communicators(p1=(5, 1, 2))
    assert [looks.row(number)["rank"] for number in (1, 2)] == [1, 1]


def test_a_process_that_moves_is_of_its_new_group_and_job(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    traced_process = looks.traced_process(1, {"PATH": "/usr/bin"})
    looks.write(traced_process)
    looks.cgroup = "/system.slice/slurmstepd.scope/job_78/step_0/user/task_0"
    for _ in range(10):
        looks.rows.look_again([traced_process], 5)
    assert (looks.row(1)["job"], looks.row(1)["job_step"]) == ("78", "0")


def test_an_end_that_is_seen_twice_takes_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was gone when its groups were looked through, and the record of its end came later."""
    looks = Looks(monkeypatch)
    traced_process = looks.traced_process(1, RANK_1)
    looks.write(traced_process)
    traced_process.exit_ns = 5
    looks.write(traced_process)
    traced_process.exit_code = 0
    looks.write(traced_process)
    assert looks.rank(1) == (1, 1, 2)
    assert (looks.row(1)["job"], looks.row(1)["exit_code"]) == ("77", 0)


def test_what_a_process_withholds_is_asked_for_again_and_takes_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    known, new = looks.traced_process(1, RANK_1), looks.traced_process(2, RANK_1)
    looks.write(known)
    looks.is_withheld = True
    known.is_described = False
    looks.write(known, new)
    assert (looks.rank(1), looks.row(1)["job"], looks.row(1)["cmdline"]) == ((1, 1, 2), "77", "python train.py")
    assert (looks.row(2)["uid"], looks.row(2)["cmdline"]) == (0, "")
    looks.is_withheld = False
    for _ in range(10):
        looks.rows.look_again([known, new], 5)
    assert (looks.rank(2), looks.row(2)["job"], looks.row(2)["cmdline"]) == ((1, 1, 2), "77", "python train.py")
