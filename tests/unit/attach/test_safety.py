"""The trial of return probes on a child of our own; with probes it is run by every recording."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from ingero.attach import safety
from ingero.attach.libbpf import AttachType, BpfError


def are_safe_with(monkeypatch: pytest.MonkeyPatch, child: Callable[[int], object]) -> bool:
    """The answer where the child does this, with no probe on it."""
    monkeypatch.setattr(safety, "_probe", lambda *_: None)
    monkeypatch.setattr(safety, "_filtered_child", child)
    monkeypatch.setattr(safety, "_CHILD_SECONDS", 0)
    monkeypatch.setattr(safety.platform, "machine", lambda: "x86_64")
    return safety.are_return_probes_safe(AttachType.UPROBE_MULTI)


def test_child_that_ends_by_itself_proves_them_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert are_safe_with(monkeypatch, lambda _go: os._exit(0))


def test_child_that_the_filter_kills_proves_them_unsafe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not are_safe_with(monkeypatch, lambda _go: os.kill(os.getpid(), signal.SIGSYS))


@pytest.mark.parametrize("child", [lambda _go: signal.pause(), lambda _go: os._exit(1)], ids=["hangs", "fails"])
def test_child_that_proves_nothing_is_told_and_waited_for_no_longer(
    monkeypatch: pytest.MonkeyPatch, child: Callable[[int], object]
) -> None:
    with pytest.raises(BpfError, match="did not finish"):
        are_safe_with(monkeypatch, child)
