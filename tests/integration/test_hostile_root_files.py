"""What says who a process is lies in its root, and its user may have mounted there what never answers."""

from __future__ import annotations

import ctypes
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingero.capture.foreign.readers import OPENER, nursery
from ingero.capture.foreign.root_files import SandboxedRootFiles
from ingero.capture.foreign.shares import UserShares
from ingero.discover.containers import Placement
from ingero.discover.jobs import job_of
from ingero.discover.rooted import RootFiles
from ingero.sandbox.process import SandboxedProcess
from tests.integration.targets import until
from tests.integration.withheld import dead_file

_DETACH = 2  # MNT_DETACH
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def unanswered(tmp_path: Path) -> Iterator[Path]:
    """A folder of a FUSE file system whose server never answers."""
    server = os.open("/dev/fuse", os.O_RDWR)
    place = tmp_path / "dead"
    place.mkdir()
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    mounted = _libc.mount(b"dead", os.fsencode(place), b"fuse", 0, options)
    assert mounted == 0, os.strerror(ctypes.get_errno())
    yield place
    _libc.umount2(os.fsencode(place), _DETACH)
    os.close(server)  # whoever still waits is let go


@pytest.fixture
def lost() -> Counter[str]:
    """Losses by counter."""
    return Counter()


@pytest.fixture
def opener() -> Iterator[SandboxedProcess]:
    """The process that looks."""
    with nursery() as makes:
        made = SandboxedProcess(makes, OPENER)
        yield made
        made.close_if_idle(0)


@pytest.fixture
def files(opener: SandboxedProcess, lost: Counter[str]) -> SandboxedRootFiles:
    """What a recording asks."""
    return SandboxedRootFiles(opener, UserShares(), lambda counter: lost.update((counter,)))


def test_it_answers_as_one_who_looks_himself(files: SandboxedRootFiles, tmp_path: Path) -> None:
    ad = tmp_path / "job.ad"
    ad.write_text("ClusterId = 12\nProcId = 3\n")
    paths = ["dev/null", "dev/nosuch", "etc"]
    assert files.devices(os.getpid(), paths) == RootFiles().devices(os.getpid(), paths) == [(1, 3), None, None]
    assert files.read(os.getpid(), str(ad).lstrip("/"), 9) == b"ClusterId"
    environ = {"_CONDOR_JOB_AD": str(ad)}
    assert job_of(Placement(), "/", environ, os.getpid(), files) == job_of(Placement(), "/", environ, os.getpid())
    for path in ("etc", "nosuch"):
        with pytest.raises(OSError, match=r"\w"):
            files.read(os.getpid(), path, 9)


def test_a_mount_that_never_answers_costs_its_user_a_second(
    files: SandboxedRootFiles, opener: SandboxedProcess, lost: Counter[str], unanswered: Path
) -> None:
    environ = {"_CONDOR_JOB_AD": str(unanswered / "job.ad")}
    for _ in range(20):
        assert job_of(Placement(), "/", environ, os.getpid(), files) is None
    assert lost == {"root_files_given_up": 20}
    assert opener.ended < 10  # half a second each; of the others nothing was asked
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:  # its share comes back
        try:
            assert files.devices(os.getpid(), ["dev/null"]) == [(1, 3)]
            return
        except OSError:
            time.sleep(0.1)
    pytest.fail("nothing is answered any more")


def test_processes_that_cannot_be_ended_are_few_and_come_back(
    opener: SandboxedProcess, lost: Counter[str], tmp_path: Path
) -> None:
    """A file system that has taken a question holds who asked, killed or not, until it answers."""
    files = SandboxedRootFiles(opener, UserShares(per_s=1e6), lambda counter: lost.update((counter,)))
    with dead_file(tmp_path, is_cached=False) as dead:
        for _ in range(20):
            with pytest.raises(OSError, match=r"\w"):
                files.read(os.getpid(), str(dead).lstrip("/"), 9)
        assert opener.ended == 8, "then nothing of this user is asked any more"
        assert lost == {"root_files_given_up": 20}
    until(lambda: _answers(files), "once they have ended others are asked for")


def _answers(files: SandboxedRootFiles) -> bool:
    try:
        return files.devices(os.getpid(), ["dev/null"]) == [(1, 3)]
    except OSError:
        return False
