"""Patterns in which real training programs wait for their GPU, as options of the trainer by name of --pattern."""

from collections.abc import Mapping
from types import MappingProxyType

LOG_EVERY = 100  # steps between two looks at the loss, which every one of these has

PATTERNS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "no-sync": {"sync_every": LOG_EVERY, "autograd_thread": True},
        # The only wait of a step is the copy of its batch, which waits for the step before: it is too large to be
        # taken along at once.
        "batch-copy": {"sync_every": LOG_EVERY, "pageable": True, "nbytes": 4 << 20},
        "item-mid": {"sync_every": LOG_EVERY, "item_mid": True},
        # Batches come over a stream that is waited for; the stream that paces the program never is.
        "copy-stream": {"sync_every": LOG_EVERY, "streams": "synced", "autograd_thread": True},
        "event-pipeline": {"sync": "behind", "behind": 1},
        "accumulate": {"accumulate": 4, "sync_every": 4},
        "eval": {"sync_every": LOG_EVERY, "eval_every": 300, "eval_batches": 60},
        "shapes": {"sync_every": LOG_EVERY, "shapes": 3},
    }
)
