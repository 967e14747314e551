"""torch.compile recompiles for new shapes, in worker processes of its own; the training waits for their result.

Inductor compiles kernels in a pool of forked processes and waits for their futures (torch/_inductor/async_compile.py of
PyTorch 2.1); here a package of that name does so. Then a new sequence length comes every 60 steps: half a second of CPU
in the compile worker, then cuModuleLoadData and another kernel to launch. Its children make kernels, not data.

Source: https://github.com/pytorch/pytorch/issues/123810
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.expected import Fault
from bench.situations.program import Gpu, has_begun, logged_steps, play
from ingero.demo.workloads import lifecycle

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_EVERY = 60  # steps between two shapes
_SOURCE = "x" * 500  # a character costs the worker 1 ms
_ASYNC_COMPILE = """
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

from ingero.demo.workloads.minitorch import naming


def _begin_worker():
    naming.die_with_parent()
    naming.name_this_thread("compile_worker")


def _triton_compile(source):
    end = time.thread_time() + len(source) / 1000
    lines = 0
    while time.thread_time() < end:
        for token in range(200):
            lines += token
    return source


class AsyncCompile:
    def __init__(self):
        context = multiprocessing.get_context("fork")
        self.pool = ProcessPoolExecutor(1, mp_context=context, initializer=_begin_worker)
        self.pool.submit(_triton_compile, "").result()

    def wait(self, source):
        return self.pool.submit(_triton_compile, source).result()
"""


def install(folder: Path) -> None:
    """Puts the package where packages are installed."""
    package = folder / "site-packages" / "torch" / "_inductor"
    package.mkdir(parents=True)
    for one in (package.parent, package):
        (one / "__init__.py").touch()
    (package / "async_compile.py").write_text(_ASYNC_COMPILE)
    sys.path.insert(0, str(folder / "site-packages"))


class CompiledModel:
    """A model that is compiled again for each new sequence length."""

    def __init__(self, compile_source: Callable[[str], str]) -> None:
        self._compile_source = compile_source
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._function = ctypes.c_void_p()

    def recompile(self, length: int) -> None:
        """Compiles and loads."""
        self._compile_source(_SOURCE)
        module = ctypes.c_void_p()
        self._driver.cuModuleLoadData(ctypes.byref(module), b"cubin")
        name = f"triton_poi_fused_{length}#ns=50000".encode()
        self._driver.cuModuleGetFunction(ctypes.byref(self._function), module, name)

    def launch(self) -> None:
        """Launches the kernel of the last length."""
        self._driver.cuLaunchKernel(self._function, 132, 1, 1, 256, 1, 1, 0, None, None, None)


def forward(model: CompiledModel, length: int, known: set[int]) -> None:
    """Calls the compiled model; a length that it has not seen is compiled first."""
    if length not in known:
        model.recompile(length)
        known.add(length)
    model.launch()


def trainer(folder: Path) -> None:
    """Trains with sequence lengths that change."""
    install(folder)
    compiler = importlib.import_module("torch._inductor.async_compile").AsyncCompile()  # forks, without a thread yet
    gpu = Gpu()
    model = CompiledModel(compiler.wait)
    known: set[int] = set()
    length = 0
    forward(model, length, known)
    lifecycle.announce("ready")
    for step in logged_steps(folder):
        if step % _EVERY == 0 and has_begun(folder):
            length += 1
        forward(model, length, known)
        gpu.step()


def make(situation: Situation) -> None:
    """The worker belongs to the trainer, and is traced with it."""
    situation.start("trainer")
    situation.name_child("trainer", "worker")
    situation.record("trainer")


EXPECTED = Fault(
    answer="""recompilation: the trainer waits at forward/recompile for its compile_worker [<worker>], which compiles
    GPU code (torch/_inductor), and loads it; use fixed or dynamic shapes, TORCH_LOGS=recompiles. Wrong: data-starvation
    ("waited for input data", more DataLoader workers): the child makes kernels; periodic-spike without a reason.""",
    wanted=(r"^(?:recompilation|cold-start|ipc-bound):", r"compil"),
    never=(
        r"^(?:data-starvation|worker-restarts|gpu-slower|unexplained):",
        r"DataLoader\(",
        r"input data",
    ),
)

if __name__ == "__main__":
    play({"trainer": trainer})
