"""What looks at pixels without a function that a table could list."""

from __future__ import annotations

import copy
import io
import pickle
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFile, ImageFilter, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader, Dataset
from torchvision import transforms as T, tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional as F, v2
from torchvision.transforms.v2 import functional as F2

from gpupipe import DataLoader
from gpupipe.live.switch import switched
from gpupipe.reasons import FallbackWarning

from .beside import by_channels, form, jpeg, outcome, same_batches, twice, waits, write_jpegs


def opened(seed: int = 1) -> Image.Image:
    return Image.open(io.BytesIO(jpeg(seed)))


def painted(im: Image.Image) -> Image.Image:
    im.paste((1, 2, 3), (2, 3, 9, 9))
    return im


def pixel_written(im: Image.Image) -> Any:
    copy = im.copy()
    pixels = im.load()
    pixels[3, 4] = (9, 8, 7)
    return pixels[3, 4], im, copy


def shrunk(im: Image.Image) -> Any:
    whole = im.copy()
    im.thumbnail((9, 9))
    return im, whole


def saved(im: Image.Image) -> bytes:
    buffer = io.BytesIO()
    im.save(buffer, "PNG")
    return buffer.getvalue()


def closed(im: Image.Image) -> Any:
    other = im.convert("RGB")
    im.close()
    return other


ALPHA: list[Callable[[Image.Image], Any]] = [
    lambda im: im.rotate(20).convert("L"),
    lambda im: im.rotate(20, Image.Resampling.BILINEAR).convert("RGB"),
    lambda im: im.rotate(20, fillcolor=(1, 2, 3)).convert("RGB"),
    lambda im: im.rotate(20).resize((9, 9)).convert("RGB"),
    lambda im: ImageOps.expand(im, 2).convert("RGB"),
    lambda im: outcome(ImageOps.autocontrast, im),
    lambda im: ImageEnhance.Contrast(im.rotate(20)).enhance(0.5),
    lambda im: ImageEnhance.Color(im.rotate(20)).enhance(0.5),
    lambda im: (im.split(), im.getchannel("A"), im.rotate(20).getchannel(0)),
    lambda im: (F.to_tensor(im), F.pil_to_tensor(im.rotate(9)), F.pad(im, 2), F.to_grayscale(im, 3)),
    lambda im: Image.alpha_composite(im, im.rotate(20)),
]
"""What scripts do with images in RGBA."""


def composed(one: Image.Image, im: Image.Image, mask: Image.Image, of: Any = (1, 2, 3, 4), twice: bool = False) -> Any:
    made = Image.composite(one, Image.new("RGBA", im.size, of) if isinstance(of, tuple) else of, mask)
    return composed(made, im, made, (9, 8, 7, 6)) if twice else (made.convert("RGB"), made)


def composites(im: Image.Image) -> list[Any]:
    clear, other = im.convert("RGBA").rotate(20), im.convert("RGBA").rotate(-20)
    return [
        (clear, clear, {}), (clear, other, {}), (clear, im.convert("L"), {}), (clear, clear, {"twice": True}),
        (clear, clear, {"of": other}), (clear, clear, {"of": im.convert("RGBA").resize((1, 1)).resize(im.size)}),
    ]  # fmt: skip


IMAGES: dict[str, Callable[[Image.Image], Any]] = {
    "core": lambda im: (im.load(), im.im.getpixel((1, 2)))[1],
    "load": lambda im: im.load()[1, 2],
    "write by load": pixel_written,
    "array": np.asarray,
    "array copy": lambda im: np.array(im, copy=True),
    "buffer": lambda im: bytes(memoryview(np.asarray(im))),
    "interface": lambda im: im.__array_interface__["data"],
    "from numpy": lambda im: torch.from_numpy(np.array(im)).sum(),
    "as_tensor": lambda im: torch.as_tensor(np.array(im)),
    "pickle": lambda im: (pickle.dumps(im), pickle.loads(pickle.dumps(im))),
    "pickle of a result": lambda im: pickle.loads(pickle.dumps(im.crop((1, 2, 9, 9)))),
    "deepcopy": lambda im: copy.deepcopy((im, im.resize((9, 9)))),
    "paint a deep copy": lambda im: (painted(copy.deepcopy(im)), im),
    "paint after a deep copy": lambda im: (painted(x := im.crop()), copy.deepcopy(x), copy.deepcopy(im.crop()), x),
    "copy": lambda im: copy.copy(im),
    "paint a copy": lambda im: (painted(im.convert("RGB")), painted(im.crop()), painted(im.copy()), im),
    "paint what was copied": lambda im: (im.convert("RGB"), im.copy(), im.resize(im.size), painted(im)),
    "thumbnail": shrunk,
    "draft": lambda im: (im.draft("L", (9, 9)), im),
    "save": saved,
    "close": closed,
    "use after closing": lambda im: (im.copy(), im.close(), im.copy()),
    "equal": lambda im: (im == opened(), im == opened(2), im.copy() == im, im != im.convert("L")),
    "identical": lambda im: (im.copy() is im, im.convert("RGB") is im, im.crop() is im),
    "type": lambda im: (type(im), type(im.copy()), isinstance(im, Image.Image), type(im) in {Image.Image}),
    "header": lambda im: (im.size, im.mode, im.format, im.info, im.getexif(), im.filename if hasattr(im, "f") else ""),
    "with": lambda im: [x.copy() for x in [im.__enter__()]],
    "split": lambda im: im.split(),
    "channels": lambda im: (im.getchannel("G"), im.getchannel(2), im),
    "a wrong channel": lambda im: im.getchannel(3),
    "merge": lambda im: (Image.merge("RGB", im.split()[::-1]), Image.merge("RGB", im.split()[:1] * 3)),
    "merge others": lambda im: Image.merge("RGB", [*im.split()[:2], opened(2).resize(im.size).getchannel(0)]),
    "a wrong merge": lambda im: Image.merge("RGB", im.split()[:2]),
    "tiles": lambda im: tiles(im.convert("RGB")),
    "blend": lambda im: Image.blend(im, im.transpose(0), 0.3),
    "alpha": lambda im: [change(im.convert("RGBA")) for change in ALPHA],
    "composite in RGBA": lambda im: [composed(one, im, mask, **more) for one, mask, more in composites(im)],
    "composite": lambda im: Image.composite(im, im.rotate(90), im.convert("L")),
    "set": lambda im: len({im.size, im.copy().size}),
    "kept": lambda im: [im, im, im.crop((0, 0, 5, 5)), im.crop((0, 0, 5, 5))],
}


@pytest.mark.parametrize("name", IMAGES)
def test_looking_at_images(name: str) -> None:
    ours, theirs = twice(lambda: [outcome(IMAGES[name], im) for im in (opened(), opened().resize((20, 18)))])
    assert ours == theirs
    assert theirs[0][0] != "raises" or name in ("use after closing", "draft", "a wrong channel", "a wrong merge")


MASK = torch.arange(20 * 24.0).reshape(20, 24) % 3


def lighting(x: Tensor) -> Any:
    """As many scripts change colors, after AlexNet."""
    alpha = x.new().resize_(3).fill_(0.1)
    rgb = torch.eye(3).type_as(x).clone().mul(alpha.view(1, 3).expand(3, 3)).sum(1).squeeze()
    return x.add(rgb.view(3, 1, 1).expand_as(x)), x.new().resize_as_(x).zero_()


def masked_by_own(x: Tensor) -> Tensor:
    mask = torch.ones(x.shape[-2:])
    made = x * mask
    mask[:] = 5
    return made


def held_elsewhere(x: Tensor) -> Any:
    """torch cannot change a tensor that something has a weak reference to, so a true one stands for it."""
    mask = F.to_tensor(opened(2)).reshape(-1)[: x.numel()].reshape(x.shape)
    reference = weakref.ref(mask)
    mask.numpy()[:] = 0.25
    return x * mask, torch.cat([x, mask]), x.mul_(mask), reference() is mask


def changed_elsewhere(x: Tensor) -> Any:
    reference = weakref.ref(x)
    x.numpy()[:] = 0.25
    made = [x * 2, F.normalize(x, [0.5], [0.2]), F2.normalize(x, [0.5], [0.2]), x.flip(-1), x[:, 1:], x.clone(), [*x]]
    made += [F.erase(x, 1, 1, 5, 5, torch.zeros(1, 1, 1)), torch.stack([x, x]), np.asarray(F.to_pil_image(x))]
    x[0] = 3
    return made, x.mul_(2), x.clone(), reference() is x


def data_set(x: Tensor) -> Tensor:
    x.data = torch.ones(2, 2)
    return x


def data_changed(x: Tensor) -> Any:
    view = x[:, 1:]
    x.data.mul_(2)
    return x, view


def gradient(x: Tensor) -> Any:
    x.requires_grad_()
    (x * 2).sum().backward()
    return x.grad, x.requires_grad


def into_waiting(x: Tensor) -> Any:
    other = F.to_tensor(opened(2))
    return torch.add(x, 1, out=other), other, x


def into_true(x: Tensor) -> Any:
    out = torch.empty_like(x)
    return torch.mul(x, 2, out=out) is out, out


def numpy_written(x: Tensor) -> Any:
    view = x.unsqueeze(0)
    x.numpy()[:, 2] = 5
    return x, view


def in_chain(x: Tensor) -> Any:
    base, view, deep = x, x[:, 2:], x[:, 2:].permute(1, 2, 0)
    view.mul_(3)
    deep[0] = 7
    return base, view, deep


def changed_views(x: Tensor) -> Any:
    base = x * 1
    view, turned, flat = base[:, 1:4], base.permute(1, 2, 0), base.clone().reshape(-1)
    view.copy_(x[:, 2:5])
    turned[2] = 7
    view[0, :, :3].mul_(3).clamp_(0, 2)
    flat.zero_()
    return base, view, turned, flat, view[1].fill_(2), base


def canvases(x: Tensor) -> Any:
    made = [x.new(3, 30, 40).zero_(), x.new_full((2, 3, 30, 40), 0.5), x.new_zeros(1, 30, 40, dtype=torch.uint8)]
    made[0][:, 2 : 2 + x.shape[1], 3 : 3 + x.shape[2]].copy_(x)
    for part in made[1]:
        part.narrow(1, 1, x.shape[1])[:, :, : x.shape[2]] = x
    rows = made[1][0]
    made[1].add_(1)
    return made, rows, [part.shape for part in made]


def again_and_again(x: Tensor) -> Any:  # longer than a chain of calls may be
    y, z = x, x.clone()
    for k in range(400):
        y = torch.stack([y * 0.99])[0].roll(1, 2)
        z[0, k % 5, k % 7] = 0.01 * k
    return y, z


def tiles(im: Image.Image) -> Image.Image:
    for k in range(300):
        im.paste(im.crop((k % 9, k % 7, k % 9 + 5, k % 7 + 4)), (3 * k % 19, k % 16))
    return im


def written_wrongly(x: Tensor) -> Any:
    return [outcome(x[:, 1:3].copy_, x), outcome(x[0].masked_fill_, MASK, 3), outcome(x[:, :2].add_, "a"), x]


def weakly(x: Tensor) -> Any:
    reference = weakref.ref(x)
    total = x.sum()
    return total, reference() is x, x + 1


TENSORS: dict[str, Callable[[Tensor], Any]] = {
    "data = ": data_set,
    "data.mul_": data_changed,
    "unsqueeze_": lambda x: (x.unsqueeze_(0), x.shape, x),
    "squeeze_": lambda x: (x[:1].squeeze_(), x),
    "transpose_": lambda x: (x.transpose_(0, 2), x.shape, x),
    "t_": lambda x: (x[0].t_(), x),
    "resize_": lambda x: (x.resize_(2, 3), x.shape),
    "share_memory_": lambda x: (x.share_memory_().is_shared(), x),
    "from_dlpack": lambda x: (torch.from_dlpack(x), x),
    "dlpack": lambda x: torch.utils.dlpack.from_dlpack(x.__dlpack__()),
    "data_ptr": lambda x: (x.data_ptr() == x.view_as(x).data_ptr(), x.data_ptr() > 0, x.untyped_storage().nbytes()),
    "storage": lambda x: (
        x.storage().tolist()[:5],
        x.untyped_storage().data_ptr() == x[0].untyped_storage().data_ptr(),
    ),
    "numpy": lambda x: x.numpy(),
    "write by numpy": numpy_written,
    "asarray": lambda x: np.asarray(x),
    "array interface": lambda x: np.array(x[0], dtype=np.float64),
    "memoryview": lambda x: bytes(memoryview(x.numpy())),
    "tolist": lambda x: x.tolist(),
    "item": lambda x: (x.max().item(), float(x[0, 0, 0]), int(x[0, 1, 1] * 255), bool(x[0, 0, 0] > 2)),
    "a mask": lambda x: (x * MASK, x + x.flip(-1), x.mul_(MASK), x),
    "a mask of another type": lambda x: (x * (MASK > 1), x * MASK.double(), x),
    "a mask that is too large": lambda x: (x[:1] * torch.rand(3, 1, 1), x),
    "a mask that torch holds": held_elsewhere,
    "held and changed": changed_elsewhere,
    "like an image": lambda x: (torch.ones(1).expand_as(x), MASK.type_as(x), x.reshape(-1).reshape_as(x), x),
    "a mask that changes": masked_by_own,
    "lighting": lighting,
    "iterate": lambda x: list(x),
    "unpack": lambda x: [*x],
    "contains": lambda x: 2.0 in x,
    "format": lambda x: f"{x.mean():.4f} {x.shape} {x[0, 0, 0]:.2f}",
    "repr": repr,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "save": lambda x: torch.load(saved_tensor(x)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "out waits": into_waiting,
    "out is true": into_true,
    "chain of views": in_chain,
    "by channels": by_channels,
    "changed views": changed_views,
    "canvases": canvases,
    "written wrongly": written_wrongly,
    "again and again": again_and_again,
    "picked": lambda x: (x.index_select(2, torch.arange(x.shape[2] - 1, -1, -1)), outcome(x.index_select, 0, MASK)),
    "legacy types": lambda x: (
        x.type("torch.FloatTensor") is x,
        x.type(torch.DoubleTensor),
        x.type("torch.ByteTensor"),
        x.type(),
        x,
        x.type(torch.float16),
        outcome(x.type, "torch.NoTensor"),
    ),
    "picked too far": lambda x: outcome(x.index_select, 0, torch.tensor([5])),
    "padded": lambda x: (torch.nn.functional.pad(x, (1, 2, 3, 4), "reflect"), torch.nn.functional.pad(x, (1, 2))),
    "write to a base": lambda x: (x[:, :3], x.permute(1, 2, 0), x.fill_(3)),
    "write a part": lambda x: (x.__setitem__((slice(None), slice(2, 5)), 0.5), x, x[0]),
    "augmented": lambda x: (x.__imul__(2), x),
    "gradient": gradient,
    "weak reference": weakly,
    "type": lambda x: (isinstance(x, Tensor), torch.is_tensor(x), type(x) in {Tensor, int}, {Tensor: 5}.get(type(x))),
    "type of an image": lambda x: (isinstance(tv_tensors.Image(x), tv_tensors.Image), tv_tensors.Image(x)),
    "wrapped": lambda x: tv_tensors.wrap(x * 2, like=tv_tensors.Image(x)),
    "v2 of an image": lambda x: v2.RandomHorizontalFlip(1)(tv_tensors.Image(x)),
    "equal": lambda x: (torch.equal(x, x.clone()), bool((x == x).all()), x.allclose(x)),
    "identical": lambda x: (x.float() is x, x.to(torch.float32) is x, x.cpu() is x, x[:] is x, x.clone() is x),
    "hash": lambda x: len({x, x, x.clone()}),
    "parameter": lambda x: torch.nn.Parameter(x),
    "module": lambda x: torch.nn.functional.conv2d(x[None], torch.ones(1, 3, 2, 2)),
    "script": lambda x: torch.jit.script(cut)(x),
    "vmap": lambda x: torch.vmap(lambda row: row * 2)(x),
    "jacobian": lambda x: torch.func.grad(lambda y: (y**2).sum())(x),
    "numpy function": lambda x: np.sum(x.numpy()) + np.float32(x.sum()),
    "no functions": lambda x: without_functions(x),
    "inference": lambda x: in_inference(x),
    "autocast": lambda x: torch.autocast("cpu", torch.bfloat16)(torch.matmul)(x, x.transpose(1, 2)),
    "default dtype": lambda x: in_double(),
}


def saved_tensor(x: Tensor) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(x, buffer)
    buffer.seek(0)
    return buffer


def cut(x: Tensor) -> Tensor:
    return x[:, 1:] * 2 + 1


def without_functions(x: Tensor) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return x + 1, x.sum(), x[0]


def in_inference(x: Tensor) -> Any:
    with torch.inference_mode():
        return (x + 1).sum(), x[:, 1:].clone()


def in_double() -> Tensor:
    torch.set_default_dtype(torch.float64)
    try:
        return F.to_tensor(opened())
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TENSORS)
def test_looking_at_tensors(name: str) -> None:
    def script() -> Any:
        batch = torch.stack([F.to_tensor(opened()), F.to_tensor(opened(2))])
        one, two = F.to_tensor(opened()), F2.resize(F2.to_dtype(F2.to_image(opened()), torch.float32, scale=True), [9])
        return [outcome(TENSORS[name], x) for x in (one, two.as_subclass(Tensor), batch[1])]

    ours, theirs = twice(script)
    assert ours == theirs
    assert theirs[0][0] != "raises"


def test_images_and_tensors_wait() -> None:
    """Otherwise the tests above would compare real ones with themselves."""
    with switched(True):
        assert waits(opened().crop((1, 2, 9, 9)).convert("L"))
        assert waits(Image.merge("RGB", opened().split()[::-1])) and waits(opened().getchannel(0))
        assert waits(copy.deepcopy(opened())) and all(map(waits, copy.deepcopy([F.to_tensor(opened())])))
        masked = F.to_tensor(opened())
        masked *= MASK.expand_as(masked)
        assert masked.size(1) == masked.size(dim=-2) == 20 and masked.shape[1] == 20
        assert waits(masked) and waits(masked * F.to_tensor(opened(2))) and all(map(waits, masked))
        assert waits(lighting(F.to_tensor(opened()))[0])
        assert waits(F.to_tensor(opened())) and waits(torch.stack([F.to_tensor(opened())] * 2))
    assert not waits(opened()) and not waits(F.to_tensor(opened()))


def changed_later() -> Any:
    """What a script gave to a function and changes afterwards."""
    box, blur, mean, order = [0, 0, 9, 9], ImageFilter.GaussianBlur(1), torch.full((3,), 0.5), [1, 2, 0]
    crop, blurred, x = opened().crop(box), opened().filter(blur), F.to_tensor(opened())
    normal, turned, taken = F.normalize(x, mean, [0.5] * 3), x.permute(order), x[[0, 2]]
    erased = F.erase(x, 1, 2, 3, 4, value := torch.ones(1, 1, 1))
    box[:], blur.radius, order[:] = [5, 5, 9, 9], 6, [0, 2, 1]
    mean += 1
    value += 1
    return crop, blurred, normal, turned, taken, erased


MEANS = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)
BY_NAME: dict[str, Callable[[], Any]] = {
    "an image": lambda: (
        F.to_tensor(pic=opened()), F.pil_to_tensor(pic=opened()), F.gaussian_blur(img=opened(), kernel_size=3),
        F.to_pil_image(pic=F.to_tensor(opened())), F.resize(img=opened(), size=[9]), ImageOps.invert(image=opened()),
    ),
    "a tensor": lambda: [
        function(input=F.to_tensor(opened()), **more)
        for function, more in (
            (torch.unsqueeze, {"dim": 0}), (torch.flip, {"dims": (2,)}), (torch.clamp, {"min": 0.5}),
            (torch.mul, {"other": 2.5}), (torch.zeros_like, {}), (torch.permute, {"dims": (1, 2, 0)}),
        )
    ],
    "parts": lambda: [torch.unbind(input=F.to_tensor(opened())), torch.unbind(F.to_tensor(opened()), axis=0)],
    "other names": lambda: torch.flip(F.to_tensor(opened()), dims=[1]) + torch.add(F.to_tensor(opened()), x2=1),
    "a wrong name": lambda: torch.mul(input=F.to_tensor(opened()), by=2),
    "another wrong name": lambda: F.to_tensor(img=opened()),
    "changed later": lambda: changed_later(),
    "a wrong box": lambda: len([opened().crop(np.array([1, 2, 9, 9]))]),
    "wrong bytes": lambda: len([F.pil_to_tensor(opened()).lerp(F.pil_to_tensor(opened()), 0.5)]),
    "double": lambda: ((F.to_tensor(opened()) - MEANS.double()).dtype, F.to_tensor(opened()).div_(MEANS.double())),
    "half": lambda: (F.convert_image_dtype(F.pil_to_tensor(opened()), torch.float16) - MEANS).dtype,
}  # fmt: skip
"""Arguments by their names, tensors of other types, and errors, which come at once."""


@pytest.mark.parametrize("name", BY_NAME)
def test_arguments(name: str) -> None:
    ours, theirs = twice(lambda: outcome(BY_NAME[name]))
    assert ours == theirs
    assert (theirs[0] == "raises") is ("wrong" in name)


@pytest.mark.parametrize("look", [lambda x: None, lambda x: x.sum()])
def test_what_a_script_sets_and_asks(look: Callable[[Tensor], Any]) -> None:
    def script() -> Any:
        one, two = F.to_tensor(opened()), F2.to_image(opened())
        one.mark, two.mark = [1], [2]
        both, copied = copy.copy(one), copy.deepcopy(one)
        found = [(x.__class__, type(x).__name__, type(x).__module__, isinstance(x, Tensor)) for x in (one, two)]
        look(one), look(two)
        return [found, one.mark, two.mark, both.mark, copied.mark, copied.mark is one.mark, one, two]

    ours, theirs = twice(lambda: form(script()))
    assert ours == theirs


def test_engines_make_no_alpha() -> None:
    with switched(True):
        clear = opened().convert("RGBA").rotate(20)
        assert waits(clear) and not waits(F.to_tensor(clear))


def test_images_of_a_batch_that_raises_are_not_counted_by_another_loader(tmp_path: Path) -> None:
    class Images(InThreads):
        def __getitem__(self, i: int) -> Any:
            return [F.to_tensor(Image.open(path)) for path in self.paths][i]

    data = Images(write_jpegs(tmp_path, 3))
    with (
        DataLoader(data, batch_size=3, device="cpu") as loader,
        pytest.raises(RuntimeError, match="equal size"),
    ):
        next(iter(loader))
    with DataLoader(data, batch_size=1, sampler=[0], device="cpu") as loader:
        assert len(list(loader)) == 1
        assert loader.stats().images["opened"] == 3


def test_memory_is_no_garbage() -> None:
    """torch's own ``to_dlpack`` tells nobody that it is called."""
    with switched(True):
        x = F.to_tensor(opened())
        with pytest.raises(RuntimeError, match="data pointer"):
            torch.utils.dlpack.to_dlpack(x)


def test_compiled_code(tmp_path: Path) -> None:
    """The compiler sees true tensors, and the library's own code."""

    def augment(x: Tensor) -> Tensor:
        return F.normalize(x.flip(-1), [0.5] * 3, [0.2] * 3) * 2

    compiled = torch.compile(augment, backend="eager", dynamic=False)
    ours, theirs = twice(lambda: outcome(compiled, F.to_tensor(opened())))
    assert ours == theirs and theirs[0] != "raises"


class InThreads(Dataset[Any]):
    """Opens and crops in threads of its own, some of them for the next sample."""

    def __init__(self, root: Path):
        self.paths = sorted(root.glob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def _one(self, path: Path) -> Tensor:
        return F.to_tensor(Image.open(path).convert("RGB").resize((16, 16)))

    def __getitem__(self, i: int) -> Any:
        with ThreadPoolExecutor(3) as pool:
            a, b, c = pool.map(self._one, [self.paths[i]] * 3)
            image = Image.open(self.paths[i]).convert("RGB")
            cropped = pool.submit(lambda: F.to_tensor(image.crop((1, 2, 17, 18)))).result()
        return a, b * 2, c[:, ::2], cropped


@pytest.mark.parametrize("workers", [0, 2])
def test_threads_of_the_script(tmp_path: Path, workers: int, exact: None) -> None:
    data = InThreads(write_jpegs(tmp_path, 6))
    assert same_batches(lambda Loader: Loader(data, batch_size=2, num_workers=workers)) is not None


KINDS: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda x: (x * 2, x - 0.5, 1 - x, x.add_(1), x.mul_(0.3)),
    "parts": lambda x: (x[:, :10], x[0], x.flip(2), x.permute(1, 2, 0), x.unbind()),
    "kept": lambda x: (x.clone(), x.detach(), x.to(torch.float16), x.float(), x.requires_grad_(False)),
    "of v1": lambda x: (F.normalize(x, [0.5] * 3, [0.2] * 3), F.erase(x, 1, 2, 3, 4, 0.5), F.pad(x, 2, 0.3)),
    "of v2": lambda x: (F2.normalize(x, [0.5] * 3, [0.2] * 3), F2.resize(x, [9]), F2.pad(x, 2)),
    "elastic": lambda x: [v2.ElasticTransform(5.0, 1.0)(y) for y in (F2.to_image(opened()), x)],
    "joined": lambda x: (torch.stack([x, x]), torch.cat([x, x * 2])),
    "images and others": lambda x: v2.CenterCrop(9)(torch.zeros(3, 20, 24), x * 2),
    "changed": lambda x: (x.__setitem__((0, 0, 0), 1), x),
}


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_classes_of_torchvision(name: str, always: bool) -> None:
    def script() -> Any:
        with tv_tensors.set_return_type("TVTensor" if always else "Tensor"):
            x = F2.to_dtype(F2.to_image(opened()), torch.float32, scale=True)
            made = KINDS[name](x)
            kinds = torch.utils._pytree.tree_map_only(Tensor, type, (made, x))
            return form(torch.utils._pytree.tree_map_only(type, lambda kind: kind.__name__, kinds)), form((made, x))

    ours, theirs = twice(script)
    assert ours == theirs


def in_threads(call: Callable[[int], Any]) -> list[Any]:
    def one(k: int) -> Any:
        with switched(True):
            return call(k)

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, range(8)))


def test_threads_that_look_at_one_image() -> None:
    large = jpeg(1, 400, 600)
    for _ in range(10):
        with switched(True):
            im, small = Image.open(io.BytesIO(large)), Image.open(io.BytesIO(large)).resize((9, 9))
            x = F.to_tensor(im)
            y = x.flip(-1)
        looks = [
            lambda k: im.crop((k, 0, k + 99, 300)).tobytes(),  # noqa: B023
            lambda k: (small.putpixel((k, k), (1, 2, 3)), small.getpixel((k, k))),  # noqa: B023
            lambda k: (x[:, k].sum().item(), y[:, :, k].sum().item()),  # noqa: B023
        ]
        found = [in_threads(look) for look in looks]
        with switched(False):
            im, small = Image.open(io.BytesIO(large)), Image.open(io.BytesIO(large)).resize((9, 9))
            x = F.to_tensor(im)
            y = x.flip(-1)
            assert found == [[look(k) for k in range(8)] for look in looks]


def test_an_image_that_another_process_gets_is_real(tmp_path: Path, exact: None) -> None:
    """Images themselves in a batch, as collate functions of lists return them."""

    def kept(batch: list[Any]) -> Any:
        return [im for im, _ in batch], torch.stack([x for _, x in batch])

    class Images(InThreads):
        def __getitem__(self, i: int) -> Any:
            im = Image.open(self.paths[i]).convert("RGB").resize((9, 9))
            return im, T.ToTensor()(im)

    data = Images(write_jpegs(tmp_path, 6))
    for workers in (0, 2):
        same_batches(lambda Loader: Loader(data, batch_size=2, num_workers=workers, collate_fn=kept))  # noqa: B023


# ---- what a user is told


def _as_array(im: Image.Image) -> Any:
    return np.array(im)


CHANGES: dict[str, tuple[Callable[[Image.Image], Any], str]] = {
    "a function of the script": (_as_array, "test_looks.py:{}, in _as_array: numpy.array"),
    "a list of libraries": (T.Compose([np.float32]), "torchvision.transforms.transforms.Compose.__call__: numpy.array"),
    "a method of Pillow": (T.Compose([Image.Image.histogram]), "torchvision.transforms.transforms.Compose.__call__: "
        "PIL.Image.Image.histogram"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("workers", [0, 1])
def test_it_tells_who_looked(tmp_path: Path, name: str, workers: int) -> None:
    change, place = CHANGES[name]
    line = _as_array.__code__.co_firstlineno + 1
    write_jpegs(tmp_path / "class", 2)
    data = ImageFolder(tmp_path, T.Compose([T.Resize((8, 8)), change, np.mean]))
    loader = DataLoader(data, batch_size=2, num_workers=workers, device="cpu")
    with pytest.warns(FallbackWarning, match="reads pixels of 2 of 2 images"):
        list(loader)
    assert loader.stats()["images"]["looks"] == {place.format(line): 2}


def test_whole_files_wait_if_pillow_may_read_incomplete_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many scripts set this flag."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    *_, last = sorted(write_jpegs(tmp_path / "class", 4).iterdir())
    last.write_bytes(last.read_bytes()[:-200])
    data = ImageFolder(tmp_path, T.Compose([_as_it_is, T.Resize((8, 8)), T.ToTensor()]))
    loader = DataLoader(data, batch_size=4, device="cpu")
    torch.testing.assert_close(next(iter(loader))[0], next(iter(TorchLoader(data, 4)))[0], atol=1 / 255, rtol=0)
    assert loader.stats()["images"]["opened"] == 3


def test_it_tells_what_does_not_wait(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    for k in range(3):
        opened(k).save(tmp_path / "class" / f"{k}.png")
    data = ImageFolder(tmp_path, T.Compose([_as_it_is, T.ToTensor()]))
    loader = DataLoader(data, batch_size=3, device="cpu")
    with pytest.warns(FallbackWarning, match=r"no plain JPEG files \(3 PNG, RGB\)"):
        list(loader)


def test_images_of_threads_are_counted(tmp_path: Path) -> None:
    data = InThreads(write_jpegs(tmp_path, 6))
    loader = DataLoader(data, batch_size=2, num_workers=1, device="cpu")
    list(loader)
    assert loader.stats()["images"] == {"opened": 24, "waited": 24, "looks": {}}


class Once(Dataset[Any]):
    """Opens an image once for all samples."""

    def __init__(self, path: Path, again: Callable[[Any], Any]):
        self.image, self.again = Image.open(path), again

    def __getitem__(self, i: int) -> Any:
        return F.to_tensor(self.image) if i == 0 else self.again(self.image)

    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize(
    ("again", "place"),
    [
        (F.to_tensor, "a batch with an image of an earlier one"),
        (_as_array, "test_looks.py:{}, in _as_array: numpy.array"),
    ],
    ids=["in a batch", "in a line"],
)
def test_it_tells_that_an_image_comes_again(tmp_path: Path, again: Callable[[Any], Any], place: str) -> None:
    (path,) = write_jpegs(tmp_path, 1).iterdir()
    loader = DataLoader(Once(path, again), device="cpu")
    list(loader)
    line = _as_array.__code__.co_firstlineno + 1
    assert loader.stats()["images"]["looks"] == {place.format(line): 1}


def _as_it_is(im: Image.Image) -> Image.Image:
    return im
