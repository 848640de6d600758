"""The DALI engine. The only folder that imports ``nvidia.dali``; even importing this package does not."""

from .config import Dali
from .options import installed

__all__ = ["Dali", "installed"]
