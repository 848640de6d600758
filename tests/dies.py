"""What ends its process. In a module of its own, which processes that are spawned import quickly."""

from __future__ import annotations

import os
import signal
from typing import Any

from gpupipe.pack.images import AsIs


class Dies(AsIs):
    def __call__(self, data: bytes) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
