"""Wrong calls. ``mypy --strict`` must find each, because it also reports a ``type: ignore`` that ignores nothing."""

from __future__ import annotations

from torch import Tensor

from gpupipe import DataLoader, datasets, transforms as T

folder = datasets.ImageFolder("photos", T.Compose([T.RandomCrop(64), T.ToTensor()]))
loader = DataLoader(folder, 8)

DataLoader(folder, batch_size="8")  # type: ignore[call-overload]
DataLoader(folder, batchsize=8)  # type: ignore[call-overload]
DataLoader(folder, engine="dalli")  # type: ignore[call-overload]
DataLoader(folder, on_error="ignore")  # type: ignore[call-overload]
datasets.ImageFolder("photos", transform=3)  # type: ignore[call-overload]
datasets.ImageList(["a.jpg"], [1], transform="crop")  # type: ignore[arg-type]
T.Compose([T.ToTensor])  # type: ignore[list-item]
T.Resize(64, interpolation="bilinaer")  # type: ignore[arg-type]
T.RandomErasing(value="rand")  # type: ignore[arg-type]
T.ToDtype("float")  # type: ignore[arg-type]
T.RandomResizedCrop(64, scale=0.5)  # type: ignore[arg-type]
T.MixUp(0.5)  # type: ignore[call-arg]
T.AutoAugment("imagenet1k")  # type: ignore[arg-type]
print(loader.stats().stal)  # type: ignore[attr-defined]
batches: DataLoader[dict[str, Tensor]] = loader  # type: ignore[assignment]
