"""Datasets composed at random of what scripts do: python -m tests.fooled.fuzz [--count 2000] [--first 0].

What is said to differ is printed with the source of its Dataset.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import textwrap
import warnings
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

from by_reference import by_reference
from PIL import Image
from torch.utils.data import DataLoader as TorchLoader

import gpupipe
from gpupipe.testing.photos import photograph

from .base import COUNT, Case, Outcome, differs, run

OPENED = [
    "image = Image.open(self.paths[i]).convert('RGB')",
    "image = Image.open(self.paths[i])",
    "image = Image.open(str(self.paths[i])).convert('RGB').copy()",
    "with open(self.paths[i], 'rb') as file:\n    image = Image.open(file).convert('RGB')",
    "image = Image.open(io.BytesIO(self.paths[i].read_bytes())).convert('RGB')",
    "image = Image.fromarray(np.array(Image.open(self.paths[i])))",
    "image = Image.fromarray(np.asarray(Image.open(self.paths[i]).convert('RGB'))[..., ::-1].copy())",
    "image = Image.open(self.paths[i]).convert('L').convert('RGB')",
    "image = Image.open(self.paths[(i * 5 + 1) % len(self)]).convert('RGB')",
    "image = self.load(i)",
    "image = load(self.paths[i])",
    "if i not in self.kept:\n    self.kept[i] = Image.open(self.paths[i]).convert('RGB')\nimage = self.kept[i]",
    "try:\n    image = Image.open(self.paths[i]).convert('RGB')\nexcept OSError:\n    return self[i - 1]",
]
BEFORE = [
    "image = image.rotate(90, expand=True)",
    "image = image.resize((40, 44))",
    "image = image.crop((2, 2, 30, 30))",
    "image = ImageOps.mirror(image)",
    "told = image.size[0] + image.height",
    "told = image.mode == 'RGB'",
    "told = int(np.asarray(image)[3, 3, 2])",
    "assert isinstance(image, Image.Image)",
    "image.load()",
    "image.thumbnail((30, 30))",
    "other = self.transform(image)",
    "told = image.getextrema()[2][0]",
    "torch.manual_seed(i)",
    "told = random.Random(i).randrange(9)",
    "self.count += 1",
    "image = pickle.loads(pickle.dumps(image))",
    "image = Image.new('RGB', (40, 40), (7, 8, 9))",
    "canvas = Image.new('RGB', (44, 40), (7, 8, 9))\ncanvas.paste(image, (i, -2))\nimage = canvas",
    "patch = image.crop((2, 3, 20, 15)).rotate(i)\nimage.paste(patch, (5, 6), patch.convert('L'))",
    "ImageDraw.Draw(image).rectangle((3, 4, 20, i + 5), (1, 2, 3))",
    "kept = image\nimage = image.copy()\nimage.paste((9, 8, 7), (0, 0, i + 1, 9))\nother = kept.getpixel((0, 0))",
    "image = image.point(lambda v: 255 - v)",
    "image = image.filter(ImageFilter.SHARPEN)",
    "r, g, b = image.split()\nimage = Image.merge('RGB', (b, g.point(lambda v: v // 2), r))",
    "image = image.convert('YCbCr').convert('RGB')",
    "image = Image.composite(image, Image.new('RGBA', image.size), image.convert('RGBA').rotate(9)).convert('RGB')",
    "image = Image.blend(image, ImageOps.invert(image), 0.25)",
    "draw = ImageDraw.Draw(image)\ndraw.line((0, 0, 30, 30), 'red')\ntold = image.getpixel((9, 9))\ndraw.point((1, 1))",
]
MADE = [
    "x = self.transform(image)",
    "x = self.transform(image)",
    "x = self.last(self.first(image))",
    "x = self.first(image)\ntold = x.size\nx = self.last(x)",
    "x = self.both[i % 2](image)",
    "x = self.apply(image)",
    "x = self.maybe(image) if self.maybe is not None else image",
    "for step in self.steps:\n    image = step(image)\nx = image",
    "x = torch.stack([self.transform(image), self.transform(image)])",
    "x = T.functional.to_tensor(self.first(image))",
    "x = CONSTANT(image)",
]
AFTER = [
    "x = x.float()",
    "x = x.clone()",
    "x = x * 2 - 1",
    "x = x[None]",
    "x = x.contiguous().cpu()",
    "told = tuple(x.shape)",
    "told = isinstance(x, torch.Tensor) and x.dtype.is_floating_point",
    "told = round(float(x.flatten()[-1]), 1)",
    "told = round(x.mean().item(), 1)",
    "x = x.flip(-1)",
    "x = x + 0.25",
    "x += 0.25",
    "x.sub_(0.5).div_(0.25)",
    "x = torch.rot90(x, i, (1, 2))",
    "before = x.clone()\nx[..., :3] = 0\nx = before",
    "part = x[..., 2:9]\nx.mul_(2)\nx = part",
    "x[..., :3] = 0",
    "told = torch.is_tensor(x)",
    "x = x / x.numel()",
    "x = torch.cat([x, x])",
    "x = x.numpy()",
    "x = self.kept_results.setdefault(i, x)",
    "x = copy.deepcopy(x)",
    "told = str(x.dtype)",
    "x = torch.zeros_like(x)",
    "for channel, mean in zip(x, (0.1, 0.2, 0.3)):\n    channel.sub_(mean).div_(0.5)",
    "view = x[:, 3:9]\nview.copy_(x[:, 5:11])\nview[0].fill_(0.5)",
    "view = x.permute(1, 2, 0)\nx[:, :4] = 0\nview[5] = 1\nx = view",
    "out = x.new_zeros(3, 40, 50)\nout[:, : x.shape[-2], : x.shape[-1]] = x[..., :50]\nx = out",
    "x = x.index_select(-1, torch.arange(x.shape[-1] - 1, -1, -1))",
    "top, *rest = x.split(7, -2)\ntop.mul_(0.5)\nx = torch.cat([*rest, top], -2)",
    "x = torch.nn.functional.pad(x, (1, 2, 3, 4))",
    "x = x.type('torch.DoubleTensor').data.to('cpu')",
    "x[0] *= 0.5\ntold = round(x[0].mean().item(), 1)\nx[1] += 1",
    "return None",
    "return {'other': i}",
    "raise ValueError(i)",
]
RETURNED = [
    "return x, i",
    "return x, told, i",
    "return {'x': x, 'label': i, 'told': told}",
    "return OrderedDict(label=i, x=x)",
    "return x",
    "return [x, (told, str(i))]",
    "return x, x, i",
    "return Pair(x, i)",
    "return i, {'views': [x, x.clone()]}",
    "return x, np.float32(i), torch.tensor([i, i])",
    "return x, self.target_transform(i)",
]
WRAPPED = [
    "{}",
    "{}",
    "{}",
    "if i % 7 == 3:\n    {}",
    "if i == 5:\n    {}",
    "try:\n    {}\nexcept Exception:\n    told = -1",
    "with contextlib.suppress(Exception):\n    {}",
]
TRANSFORMS = [
    "T.Resize(24), T.CenterCrop(20), T.ToTensor()",
    "T.Resize((20, 20)), T.ToTensor()",
    "T.CenterCrop(20), T.ToTensor(), T.Normalize([0.5] * 3, [1.0] * 3)",
    "T.RandomCrop(20), T.RandomHorizontalFlip(), T.ToTensor()",
    "T.RandomResizedCrop(20), T.ToTensor()",
    "T.Grayscale(3), T.CenterCrop(20), T.ToTensor()",
    "T.RandomCrop(20), T.PILToTensor(), T.ConvertImageDtype(torch.float32)",
    "T.CenterCrop(20), T.Lambda(brighter), T.ToTensor()",
]
LOADERS: list[dict[str, Any]] = [
    {"batch_size": 4},
    {"batch_size": 5, "drop_last": True},
    {"batch_size": 1},
    {"batch_size": 3, "sampler": [5, 5, 2, 9, 0, 23, 11]},
    {"batch_size": 4, "collate_fn": "present"},
    {"batch_size": 6, "collate_fn": "list"},
    {"batch_size": 4, "collate_fn": "padded"},
]
_HEAD = """
import contextlib, copy, io, pickle, random
from collections import OrderedDict, namedtuple
import numpy as np, torch
from PIL import Image, ImageDraw, ImageFilter, ImageOps
from torch.utils.data import Dataset, default_collate
from torchvision import transforms as T

Pair = namedtuple("Pair", "x label")
CONSTANT = T.Compose([T.Resize((20, 20)), T.ToTensor()])

def load(path):
    with path.open("rb") as file:
        return Image.open(file).convert("RGB")

def brighter(image):
    return image.point(lambda v: min(255, v + 10))

def present(samples):
    return default_collate([sample for sample in samples if sample is not None])

def padded(samples):
    images = [sample[0] for sample in samples]
    out = torch.zeros(len(images), 3, 60, 60, dtype=images[0].dtype)
    for image, part in zip(images, out):
        part[:, : image.shape[-2], : image.shape[-1]].copy_(image)
    return out, [sample[1:] for sample in samples]

class Composed(Dataset):
    def __init__(self, root):
        self.paths = sorted(root.glob("*.jpg"))
        self.steps = [{transforms}]
        self.transform = T.Compose(self.steps)
        self.first, self.last = T.CenterCrop(22), T.Compose([{transforms}])
        self.both = [self.transform, T.Compose([T.CenterCrop(20), T.ToTensor()])]
        self.maybe, self.count = self.transform, 0
        self.kept, self.kept_results = {{}}, {{}}
        self.target_transform = lambda label: label % 3

    def __len__(self):
        return len(self.paths)

    def load(self, i):
        return Image.open(self.paths[i]).convert("RGB")

    def apply(self, image):
        return self.transform(image) * 1.0

    def __getitem__(self, i):
        told = 0
"""


def composed(seed: int) -> tuple[str, dict[str, Any]]:
    """The source of a module with a Dataset, and arguments for its loader."""
    rng = random.Random(seed)
    lines = [rng.choice(OPENED)]
    lines += [_wrapped(rng, rng.choice(BEFORE)) for _ in range(rng.choice([0, 0, 1, 2]))]
    lines.append(rng.choice(MADE))
    lines += [_wrapped(rng, rng.choice(AFTER)) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    lines.append(rng.choice(RETURNED))
    body = textwrap.indent("\n".join(lines), " " * 8)
    return _HEAD.format(transforms=rng.choice(TRANSFORMS)) + body + "\n", dict(rng.choice(LOADERS))


def _wrapped(rng: random.Random, line: str) -> str:
    pattern = rng.choice(WRAPPED)
    return pattern.format(line.replace("\n", "\n    ") if "\n" in pattern else line)


def write_pictures(root: Path, *, plain: bool) -> Path:
    """Photographs, or pictures of one color each, of which a crop is like any other crop."""
    for i in range(COUNT):
        of_one_color = Image.new("RGB", (36, 32), (3 * i, 250 - 9 * i, 10 * i))
        image = of_one_color if plain else Image.fromarray(photograph(32, 36, i))
        image.save(root / f"{i:02}.jpg", quality=95)
    return root


def case_of(seed: int) -> Case:
    source, options = composed(seed)
    module = ModuleType(f"composed_{seed}")
    sys.modules[module.__name__] = module  # where workers find its classes
    names = vars(module)
    exec(compile(source, f"<composed {seed}>", "exec"), names)

    def script(Loader: Any, root: Path, **arguments: Any) -> Any:
        if (collate := options.get("collate_fn")) is not None:
            arguments["collate_fn"] = list if collate == "list" else names[collate]
        loader = Loader(names["Composed"](root), **{**options, **arguments})
        return [_epoch(loader) for _ in range(2)]

    return Case(f"composed {seed}", script, True)


def _epoch(loader: Any) -> list[Any]:
    """The batches, up to an exception."""
    found: list[Any] = []
    try:
        found.extend(loader)
    except Exception:
        found.append("failed")
    return found


def judged(seed: int, workers: int, *, dali: bool = False) -> tuple[str | None, bool, bool]:
    """(what differs from torch, whether torch's loader was done, whether images waited to the end)"""
    made: list[gpupipe.DataLoader] = []

    def ours(*args: Any, **kwargs: Any) -> Any:
        made.append(gpupipe.DataLoader(*args, device="cpu", live=True, **kwargs))
        return made[-1]

    found, case = list[Outcome](), case_of(seed)
    for Loader in (TorchLoader, ours):
        maker = nullcontext() if dali else by_reference()
        with tempfile.TemporaryDirectory() as root, warnings.catch_warnings(), maker:
            found.append(run(case, Loader, write_pictures(Path(root), plain=dali), num_workers=workers))
    waited = any(loader._session.looks.waited for loader in made)  # type: ignore[attr-defined]
    for loader in made:
        loader.close()
    return differs(found[1], found[0], exact=not dali), found[0].error is None, waited


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", nargs="+", type=int, default=[0])
    parser.add_argument("--dali", action="store_true", help="pixels by DALI, which are compared within a tolerance")
    options = parser.parse_args()
    logging.getLogger("gpupipe").setLevel(logging.ERROR)
    told = Counter[str]()
    for seed in range(options.first, options.first + options.count):
        for workers in options.workers:
            wrong, ran, waited = judged(seed, workers, dali=options.dali)
            told.update(
                runs=1,
                **{"with images that waited": waited, "that differ": wrong is not None, "that torch ends": not ran},
            )
            if wrong is not None:
                body = composed(seed)[0].partition("def __getitem__")[2]
                print(f"\n{seed}, {workers} workers: {wrong}\n{body}", flush=True)
    print(", ".join(f"{count:,} {what}" for what, count in told.items()))
    return told["that differ"] > 0


if __name__ == "__main__":
    sys.exit(main())
