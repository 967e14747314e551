"""Each kernel takes every program that its version can run: a refused one costs what it would have told, in silence."""

from __future__ import annotations

import pytest

from ingero.attach.kernel_side import KernelSide, KernelSizes
from ingero.attach.probes import ProbeMode
from ingero.discover.kernel import read_kernel

pytestmark = pytest.mark.integration

# What is missing before: by its name in `KernelSide.unavailable`.
SINCE = {
    ProbeMode.SESSION.value: (6, 13),
    ProbeMode.MULTI.value: (6, 6),
    "socket_send": (6, 3),
    "socket_receive": (6, 3),
}
MISSING = {name for name, since in SINCE.items() if read_kernel().version < since}


@pytest.mark.parametrize("mode", [None, *(mode for mode in ProbeMode if mode.value not in MISSING)])
def test_nothing_is_refused_but_what_the_kernel_is_too_old_for(mode: ProbeMode | None) -> None:
    with KernelSide(KernelSizes(), mode=mode, with_stacks=True) as kernel:
        kernel.start()
        print(f"\n{kernel.mode.value}: without {', '.join(one.name for one in kernel.unavailable) or 'nothing'}")
        refused = {one.name: one.reason for one in kernel.unavailable if one.name not in MISSING}
    assert not refused
