"""Transforms with the names, arguments and rules of ``torchvision.transforms.v2``.

The package exports the names in each module's ``__all__``; everything else is internal.
"""

from . import (
    auto_augment,
    blur,
    bucket,
    color,
    containers,
    detection,
    dtype,
    enhance,
    erasing,
    geometry,
    lambda_,
    mixing,
    objects,
    photometric,
    random_resize,
    resize,
    views,
    warp,
)
from .auto_augment import *
from .blur import *
from .bucket import *
from .color import *
from .compose import Compose
from .containers import *
from .detection import *
from .dtype import *
from .enhance import *
from .erasing import *
from .geometry import *
from .lambda_ import *
from .mixing import *
from .objects import *
from .photometric import *
from .random_resize import *
from .resize import *
from .transform import Transform
from .views import *
from .warp import *

__all__ = ["Compose", "Transform"]
__all__ += auto_augment.__all__
__all__ += blur.__all__
__all__ += bucket.__all__
__all__ += color.__all__
__all__ += containers.__all__
__all__ += detection.__all__
__all__ += dtype.__all__
__all__ += enhance.__all__
__all__ += erasing.__all__
__all__ += geometry.__all__
__all__ += lambda_.__all__
__all__ += mixing.__all__
__all__ += objects.__all__
__all__ += photometric.__all__
__all__ += random_resize.__all__
__all__ += resize.__all__
__all__ += views.__all__
__all__ += warp.__all__


def __dir__() -> list[str]:
    return __all__
