"""A bucket on a FUSE mount: the process that serves it, and how a situation gets it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ingero.demo.workloads import lifecycle, slow_mount
from ingero.demo.workloads.minitorch import naming

if TYPE_CHECKING:
    from bench.situations.situation import Situation

MOUNT = "bucket"  # in the folder of the situation


def serve(folder: Path, bucket: Callable[[int, Path], slow_mount.SlowFile]) -> None:
    """Serves the file system. bucket: made of its device and the folder."""
    naming.name_this_thread("gcsfuse")
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    slow_mount.mount(device, folder / MOUNT)
    lifecycle.announce("ready")
    bucket(device, folder).serve()


def make(situation: Situation) -> None:
    """The mount is a service of the host; the trainer beside it is traced."""
    mount = situation.folder / MOUNT
    mount.mkdir()
    situation.stack.callback(slow_mount.unmount, mount)
    situation.start("mount_server")
    situation.start("trainer")
    situation.record("trainer")
