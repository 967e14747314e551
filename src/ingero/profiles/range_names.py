"""The kind of a user range by its name: a step, data loading, an operator of a framework, or another range."""

from __future__ import annotations

import re

from ingero.profiles.model import RangeKind

# PyTorch's profiler marks each step like this (torch/profiler/profiler.py); users write the other names by hand.
_STEP = re.compile(r"ProfilerStep\*?#?\d+$|(training[_ ])?(step|iteration|iter)[ _#:]*\d+$", re.IGNORECASE)
# torch/utils/data/dataloader.py marks its __next__ as enumerate(DataLoader)#...
_DATA_LOADING = re.compile(r"enumerate\(DataLoader\)|data[_ ]?load(er|ing)\b|_next_data\b", re.IGNORECASE)
# torch.autograd.profiler.emit_nvtx appends these to the names of operators.
_NVTX_SUFFIX = re.compile(r"(, (seq|op_id|sizes|trace_id) = .*)$", re.DOTALL)


def range_kind(name: str) -> RangeKind:
    """The kind of a range that a user or a framework marked."""
    if _STEP.match(name):
        return RangeKind.STEP
    return RangeKind.DATA_LOADING if _DATA_LOADING.search(name) else RangeKind.RANGE


def nvtx_range(name: str) -> tuple[RangeKind, str]:
    """Kind and name of an NVTX range: PyTorch's own are operators."""
    plain = _NVTX_SUFFIX.sub("", name)
    return (RangeKind.OPERATOR if plain != name else range_kind(name)), plain
