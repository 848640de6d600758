"""Code that looks at an image, before or after its transforms."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps
from torch.nn import functional as F
from torchvision import transforms as T
from torchvision.transforms import functional as TF

from .base import EVAL, RARE, Pictures, case


@case()
class LooksInsideTry(Pictures):
    """Masks in the manner of iBOT: an exception leaves the list empty."""

    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        masks = []
        try:
            _, height, width = x.shape
            masks.append(torch.ones(height // 4, width // 4))
        except Exception:
            pass
        return x, torch.stack(masks) if masks else torch.zeros(0)


@case()
class ValuesInsideTry(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        level = -1.0
        with contextlib.suppress(Exception):
            level = round(float(x[2, 0, 0]), 1)
        return x, level


@case()
class ValuesOfAFewInsideTry(Pictures):
    def __getitem__(self, i: int) -> Any:
        x, level = self.transform(self.open(i)), -1.0
        if i % 12 == RARE:
            try:
                level = round(x.max().item())
            except Exception:
                level = -2.0
        return x, level


@case()
class Mean(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return x, x.mean()


@case()
class FlipsWhatIsBright(Pictures):
    """A branch on a value."""

    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return (x.flip(2) if x[2, 0, 0] > 0.85 else x), i


@case()
class BranchesOnSize(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        if x.ndim != 3 or x.size(0) != 3 or x.shape[-2:] != (20, 20):
            x = torch.zeros(3, 20, 20)
        return x, len(x)


@case()
class ScalesIfTensor(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return (x * 2 - 1 if isinstance(x, torch.Tensor) else x), i


@case()
class ScalesIfNoTensor(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        if not torch.is_tensor(x):
            x = torch.from_numpy(np.asarray(x))
        return x, i


@case()
class ComparesType(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return (x if type(x) is torch.Tensor else x[0]), type(x).__name__


@case()
class SwitchesOnClass(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        kinds = {torch.Tensor: 1, Image.Image: 2}
        return x, kinds.get(x.__class__, 3)


@case()
class MatchesByCase(Pictures):
    def __getitem__(self, i: int) -> Any:
        match self.transform(self.open(i)):
            case torch.Tensor() as x:
                return x, 1
            case Image.Image() as image:
                return EVAL(image), 2
        return torch.zeros(3, 20, 20), 3


@case()
class AsksForAttributes(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return x, [hasattr(x, name) for name in ("numpy", "getpixel", "im", "pending", "astype", "shape")]


@case()
class AsksPILAfterResize(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.resize, self.rest = T.Resize(24), T.Compose([T.CenterCrop(20), T.ToTensor()])

    def __getitem__(self, i: int) -> Any:
        image = self.resize(self.open(i))
        ok = isinstance(image, Image.Image) and image.mode == "RGB" and TF.get_image_size(image) == list(image.size)
        return self.rest(image), ok, image.size, image.width * image.height


@case()
class PixelsBetweenTransforms(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.resize, self.rest = T.Resize(24), T.Compose([T.CenterCrop(20), T.ToTensor()])

    def __getitem__(self, i: int) -> Any:
        image = self.resize(self.open(i))
        return self.rest(image), image.getpixel((3, 4))[2]


@case()
class FiltersBetweenTransforms(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.resize, self.rest = T.Resize(24), T.Compose([T.CenterCrop(20), T.ToTensor()])

    def __getitem__(self, i: int) -> Any:
        image = self.resize(self.open(i))
        if i % 3 == 0:
            image = image.filter(ImageFilter.GaussianBlur(1))
        return self.rest(image), i


@case()
class ArrayOfResult(Pictures):
    def __getitem__(self, i: int) -> Any:
        return np.asarray(self.transform(self.open(i))), i


@case()
class NumpyOfResult(Pictures):
    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)).numpy(), i


@case()
class ChannelsLastArray(Pictures):
    def __getitem__(self, i: int) -> Any:
        return np.transpose(self.transform(self.open(i)).numpy(), (1, 2, 0)).copy(), i


@case()
class ListOfValues(Pictures):
    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), [round(v, 1) for v in self.transform(self.open(i))[2, 0, :3].tolist()]


@case()
class Slices(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return x[:, ::2, ::2], x[0], x[..., -1]


@case()
class Unpacks(Pictures):
    def __getitem__(self, i: int) -> Any:
        r, g, b = self.transform(self.open(i))
        return torch.stack([b, g, r]), i


@case()
class InPlace(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        x.mul_(0.5)
        x += 0.25
        return x, i


@case()
class Erases(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        x[:, 2:6, 3:9] = 0
        return x, i


@case()
class ErasesOne(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        if i == RARE:
            x[:, 2:6, 3:9] = 0
        return x, i


@case()
class NormalizesByHand(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return TF.normalize(x, [0.5] * 3, [1.0] * 3), i


@case()
class InterpolatesByHand(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return F.interpolate(x[None], 10, mode="bilinear")[0], x


@case()
class OtherTypes(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return x.float(), x.to(torch.float64), x.half(), x.double().float(), (x * 255).byte()


@case()
class OnTheCpu(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return x.cpu().detach().contiguous().clone(), str(x.device), x.is_cuda, x.requires_grad


@case()
class AsksForGradients(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return x, x.requires_grad_().sum().backward() is None and bool((x.grad == 1).all())


@case()
class LikeIt(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return x, torch.zeros_like(x), x.new_ones(2), torch.empty(x.shape).fill_(i)


@case()
class Prints(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return x, len(repr(x)) > 50, f"{x.shape}", str(x.dtype)


@case()
class Permutes(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return x.permute(1, 2, 0), x.reshape(-1), x.unsqueeze(0), x.view(3, -1)


@case()
class Patches(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return x.unfold(1, 5, 5).unfold(2, 5, 5).reshape(3, -1, 5, 5).transpose(0, 1), i


@case()
class CopiesAndPickles(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return copy.deepcopy(x), pickle.loads(pickle.dumps(x)), copy.copy(x)


@case()
class Saves(Pictures):
    def __getitem__(self, i: int) -> Any:
        x, file = self.transform(self.open(i)), io.BytesIO()
        torch.save(x, file)
        return x, torch.load(io.BytesIO(file.getvalue()))


@case()
class KeysOfADict(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        names = {x: "image", 3: "number"}
        return x, names[x], x in names


@case()
class Equals(Pictures):
    def __getitem__(self, i: int) -> Any:
        x, again = self.transform(self.open(i)), self.transform(self.open(i))
        return x, torch.equal(x, again), bool((x == again).all()), x is x


@case()
class HashesPixels(Pictures):
    def __getitem__(self, i: int) -> Any:
        image = self.open(i)
        return self.transform(image), hashlib.md5(image.tobytes()).hexdigest()


@case()
class AsksForTheFile(Pictures):
    """What Pillow knows of a file that is not decoded."""

    def __getitem__(self, i: int) -> Any:
        image = Image.open(self.paths[i])
        told = Path(str(image.filename)).name, image.format, image.mode, image.size, sorted(image.info)
        return self.transform(image.convert("RGB")), told


@case()
class Thumbnails(Pictures):
    """Changes the image in place before its transforms."""

    def __getitem__(self, i: int) -> Any:
        image = self.open(i)
        image.thumbnail((30, 30))
        return self.transform(image), image.size


@case()
class Draws(Pictures):
    def __getitem__(self, i: int) -> Any:
        image = self.open(i)
        image.putpixel((18, 16), (255, 255, 255))
        image.paste((9, 9, 9), (4, 4, 12, 12))
        return self.transform(image), i


@case()
class AltersBefore(Pictures):
    def __getitem__(self, i: int) -> Any:
        return self.transform(ImageOps.mirror(ImageOps.exif_transpose(self.open(i)))), i


@case()
class Grows(Pictures):
    """Pads what is narrow: a branch that depends on the image."""

    def __getitem__(self, i: int) -> Any:
        image = self.open(i)
        width, height = image.size
        side = max(width, height)
        padded = Image.new("RGB", (side, side), (128, 128, 128))
        padded.paste(image, ((side - width) // 2, (side - height) // 2))
        return self.transform(padded), side


@case()
class CropsByArray(Pictures):
    def __getitem__(self, i: int) -> Any:
        pixels = np.array(self.open(i))
        rows, columns = np.nonzero(pixels[..., 0] > 20)
        box = (int(columns.min()), int(rows.min()), int(columns.max()), int(rows.max()))
        return self.transform(Image.fromarray(pixels).crop(box)), box


@case()
class StatisticsOfArray(Pictures):
    def __getitem__(self, i: int) -> Any:
        pixels = np.asarray(self.open(i))
        return self.transform(Image.fromarray(pixels)), float(pixels[..., 2].mean()), pixels.shape


@case()
def seldom_writes_to_an_array(Loader: Any, root: Path, **arguments: Any) -> bool:
    """In a tenth of the samples, as code that adds noise or a cutout does."""
    loader = Loader(ErasesInArrays(root), batch_size=8, **arguments)
    return sum(int(erased.sum()) for _ in range(12) for _, erased in loader) > 12


class ErasesInArrays(Pictures):
    def __init__(self, root: Path):
        super().__init__(root, T.Compose([T.ToPILImage(), EVAL]))

    def __getitem__(self, i: int) -> Any:
        pixels, erases = np.array(self.open(i)), random.random() < 0.1
        if erases:
            pixels[:8] = 0
        return self.transform(pixels), erases


@case()
class Verifies(Pictures):
    def __getitem__(self, i: int) -> Any:
        Image.open(self.paths[i]).verify()
        image = Image.open(self.paths[i])
        image.load()
        return self.transform(image.convert("RGB")), image.getextrema()


@case()
class AsTensorWithoutTransforms(Pictures):
    def __getitem__(self, i: int) -> Any:
        pixels = torch.from_numpy(np.array(self.open(i).resize((20, 20)))).permute(2, 0, 1)
        return pixels.float().div(255), i


@case()
class ToImageAndBack(Pictures):
    def __init__(self, root: Path):
        super().__init__(root, T.Compose([T.ToTensor(), T.ToPILImage(), T.Resize(24), T.CenterCrop(20), T.ToTensor()]))


@case()
class Grays(Pictures):
    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i).convert("L")), i


class Tensors(Pictures):
    """Images are tensors before their transforms."""

    def __init__(self, root: Path):
        super().__init__(root, T.Compose([T.Resize(24), T.CenterCrop(20), T.ConvertImageDtype(torch.float32)]))

    def tensor(self, i: int) -> torch.Tensor:
        return TF.pil_to_tensor(self.open(i))

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.tensor(i)), i


@case()
class TensorIsWrittenTo(Tensors):
    def tensor(self, i: int) -> torch.Tensor:
        x = super().tensor(i)
        x[:, :12] = 0
        return x


@case()
class TensorIsWrittenToAfterwards(Tensors):
    def __getitem__(self, i: int) -> Any:
        x = self.tensor(i).clone()
        y = self.transform(x)
        if i % 12 == RARE:
            x.zero_()
        return y, x[0, 0, :3] if i % 12 == RARE else torch.zeros(3, dtype=torch.uint8)


@case()
class TensorSharesMemoryWithArray(Tensors):
    def tensor(self, i: int) -> torch.Tensor:
        array = np.array(self.open(i))
        x = torch.from_numpy(array).permute(2, 0, 1)
        if i % 2:
            array[:12] = 0
        return x


@case()
class TensorAndItsMean(Tensors):
    def __getitem__(self, i: int) -> Any:
        x = self.tensor(i)
        return self.transform(x), round(float(x.float().mean()), 2)
