"""ingero: an eBPF agent that explains why a GPU is stalling."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingero.serve.library import Recording, Table, open_recording

__version__ = "0.1.0"
__all__ = ["Recording", "Table", "__version__", "open_recording"]


def __getattr__(name: str) -> object:
    """Imports the library on first use: small commands do not need it."""
    if name in __all__:
        from importlib import import_module  # noqa: PLC0415  # as the docstring says

        return getattr(import_module("ingero.serve.library"), name)
    raise AttributeError(f"module 'ingero' has no attribute {name!r}")
