"""Whether these tests run on an emulated processor (`make test-kernels` without KVM), where times mean little."""

from __future__ import annotations

import os

IS_EMULATED = os.environ.get("INGERO_GUEST") == "tcg"
