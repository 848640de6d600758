"""What the witness reads: photographs, odd files and clips, made from numbers, the same on every machine up to what
Pillow's and FFmpeg's encoders make of them. Nothing of gpupipe is imported here."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import io
import shutil
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

__all__ = ["COUNT", "Inputs", "Skip", "package"]

U8 = npt.NDArray[np.uint8]

COUNT = 13
"""Photographs; no multiple of any batch."""
SIZES = ((64, 80), (72, 60), (97, 66), (64, 64), (50, 83))
"""(height, width) in turn."""
_TIMES = [0, 40, 90, 91, 130, 200, 210, 290, 300, 301, 302, 400, 480, 500, 600, 640, 650, 700, 790, 800, 805, 900]
"""Milliseconds of frames at a rate that varies."""


class Skip(Exception):
    """This cannot be done here; the message says what is missing."""


def picture(height: int, width: int, seed: int) -> U8:
    """u8[H, W, 3]: slopes, hard edges and noise, in whole numbers, so that every processor computes the same."""
    rng = np.random.default_rng(seed)
    y, x = np.indices((height, width))
    slopes = rng.integers(1, 9, (3, 2))
    channels = [np.abs((y * a + x * b + 70 * k) % 512 - 256) for k, (a, b) in enumerate(slopes.tolist())]
    image = np.stack(channels, axis=-1)
    top, left = (int(n) for n in rng.integers(0, (height // 2, width // 2)))
    image[top : top + height // 3, left : left + width // 3] = rng.integers(0, 256, 3)
    return np.clip(image + rng.integers(-9, 10, image.shape), 0, 255).astype(np.uint8)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def package(name: str) -> Any:
    """A package that may be missing. torchvision may be built for CUDA beside a torch that is not: its compiled
    operators cannot be loaded then, and importing it fails while it describes them, so they are declared before."""
    found = importlib.util.find_spec(name.partition(".")[0])
    if found is None:
        raise Skip(f"{name.partition('.')[0]} is not installed")
    if name.startswith(("torchvision", "timm")):
        _declare_torchvision_ops()
    return importlib.import_module(name)


_DECLARED: list[Any] = []
"""Declarations end with their object."""


def _declare_torchvision_ops() -> None:
    torch: Any = importlib.import_module("torch")
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations or torch.version.cuda is not None:
        return
    for file in Path(spec.submodule_search_locations[0]).glob("_C*.so"):
        try:
            torch.ops.load_library(str(file))
        except OSError:
            continue
        return
    missing = [name for name in ("nms", "qnms") if not hasattr(torch.ops.torchvision, name)]
    if missing:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in missing:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)


class Inputs:
    """Files below ``root``, each made when it is first asked for."""

    def __init__(self, root: Path):
        self.root = root
        self._copies = 0

    @cached_property
    def pixels(self) -> U8:
        """u8[13, 40, 52, 3]."""
        return np.stack([picture(40, 52, 100 + i) for i in range(COUNT)])

    @cached_property
    def small(self) -> U8:
        """u8[13, 32, 32, 3], as CIFAR has them."""
        return np.stack([picture(32, 32, 200 + i) for i in range(COUNT)])

    @cached_property
    def files(self) -> list[Path]:
        """The photographs in the order of the folder."""
        return sorted(self.photos.rglob("*.jpg"))

    @cached_property
    def photos(self) -> Path:
        """Three classes of JPEG files; some in gray, some with all color resolution."""
        root = self.root / "photos"
        for i in range(COUNT):
            image = Image.fromarray(picture(*SIZES[i % len(SIZES)], i))
            path = root / f"class{i % 3}" / f"photo{i:02d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            gray = image.convert("L") if i % 6 == 5 else image
            path.write_bytes(encoded(gray, "JPEG", quality=80 + i, subsampling=2 * (i % 2) if gray is image else -1))
        return root

    @cached_property
    def list_file(self) -> Path:
        """A CSV file with a header and names of classes."""
        path = self.root / "photos.csv"
        rows = [f"{file.relative_to(self.root)},{'even' if i % 2 else 'odd'}" for i, file in enumerate(self.files)]
        path.write_text("\n".join(["path,label", *reversed(rows)]) + "\n")
        return path

    @cached_property
    def odd(self) -> Path:
        """Two classes of what is no plain JPEG file."""
        rgb = Image.fromarray(picture(61, 83, 300))
        alpha = rgb.copy()
        alpha.putalpha(Image.fromarray(picture(61, 83, 301)[..., 0]))
        deep = Image.fromarray(picture(61, 83, 302)[..., 0].astype(np.uint16) * 257)
        turned = Image.Exif()
        turned[0x0112] = 6  # to be turned by 90 degrees
        files = {
            "jpeg/cmyk.jpg": encoded(rgb.convert("CMYK"), "JPEG", quality=90),
            "jpeg/exif6.jpg": encoded(rgb, "JPEG", quality=90, exif=turned),
            "jpeg/gray.jpg": encoded(rgb.convert("L"), "JPEG", quality=90),
            "jpeg/named.jpg": encoded(rgb, "PNG"),
            "jpeg/progressive.jpg": encoded(rgb, "JPEG", quality=85, progressive=True),
            "jpeg/restarts.jpg": encoded(rgb, "JPEG", quality=85, restart_marker_rows=1),
            "jpeg/tiny.jpg": encoded(rgb.crop((0, 0, 1, 1)), "JPEG"),
            "other/alpha.png": encoded(alpha, "PNG"),
            "other/bits.png": encoded(rgb.convert("1"), "PNG"),
            "other/colors.gif": encoded(rgb.quantize(64), "GIF"),
            "other/deep.png": encoded(deep, "PNG"),
            "other/exif6.png": encoded(rgb, "PNG", exif=turned),
            "other/gray.png": encoded(rgb.convert("L"), "PNG"),
            "other/lossless.webp": encoded(rgb, "WEBP", lossless=True),
            "other/lossy.webp": encoded(rgb, "WEBP", quality=80),
            "other/palette.png": encoded(rgb.quantize(64), "PNG"),
            "other/plain.bmp": encoded(rgb, "BMP"),
            "other/plain.ppm": encoded(rgb, "PPM"),
            "other/two.gif": encoded(rgb.quantize(9), "GIF", save_all=True, append_images=[rgb.quantize(5)]),
            "other/packed.tif": encoded(rgb, "TIFF", compression="tiff_lzw"),
        }
        for name, content in files.items():
            path = self.root / "odd" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return self.root / "odd"

    def spoiled(self) -> Path:
        """A copy of the photographs: file 3 lost its second half, file 5 is no picture. An index knows both."""
        self._copies += 1
        root = Path(shutil.copytree(self.photos, self.root / f"spoiled{self._copies}"))
        files = sorted(root.rglob("*.jpg"))
        content = files[3].read_bytes()
        files[3].write_bytes(content[: len(content) // 2])
        files[5].write_bytes(b"<html>404</html>")
        return root

    @staticmethod
    def spoil_more(root: Path) -> None:
        """After indexing: file 8 keeps its headers and the beginning of its pixels, file 10 vanishes."""
        files = sorted(root.rglob("*.jpg"))
        content = files[8].read_bytes()
        start = content.rindex(b"\xff\xda") + 14
        files[8].write_bytes(content[: start + (len(content) - start) // 20])
        files[10].unlink()

    @cached_property
    def videos(self) -> Path:
        """Two classes: constant and varying rates, with B-frames and without, one shorter than a clip, one broken."""
        if importlib.util.find_spec("av") is None:
            raise Skip("av is not installed")
        root = self.root / "videos"
        # With a constant quantizer: x264's rate control lets memory that it never wrote to into the pixels.
        frames = {"qp": "20", "bf": "3", "g": "12", "keyint_min": "12", "sc_threshold": "0"}
        closed = {**frames, "x264-params": "open-gop=0:b-pyramid=normal:b-adapt=0"}
        opened = {**frames, "x264-params": "open-gop=1:b-pyramid=normal:b-adapt=0"}
        _video(root / "a" / "closed.mp4", "libx264", 40, (64, 96), 1, options=closed)
        _video(root / "a" / "odd.mkv", "libx264", 30, (37, 65), 2, options=closed, pixels="yuv444p")
        _video(root / "a" / "short.mp4", "libx264", 3, (48, 64), 3, options={"qp": "20"})
        _video(root / "b" / "mpeg4.avi", "mpeg4", 30, (48, 64), 4, options={"bf": "2", "g": "12"})
        _video(root / "b" / "open.mkv", "libx264", 40, (64, 96), 5, options=opened)
        _video(root / "b" / "varying.mp4", "libx264", 22, (64, 80), 6, options=closed, times=_TIMES)
        (root / "b" / "broken.mp4").write_bytes(b"no video at all")
        return root

    @cached_property
    def good_videos(self) -> list[Path]:
        """All but the broken one."""
        return sorted(p for p in self.videos.rglob("*.*") if p.stem != "broken")

    def checksums(self) -> dict[str, str]:
        """Of the files that were made: pixels cannot be compared where the encoders wrote others. Of clips, what PyAV
        decodes, because Matroska files have a random number in them."""
        found = {}
        for name in ("photos", "odd"):
            if name in self.__dict__:
                contents = [p.read_bytes() for p in sorted((self.root / name).rglob("*.*"))]
                found[f"files of {name}"] = hashlib.blake2b(b"".join(contents), digest_size=6).hexdigest()
        if "videos" in self.__dict__:
            import av

            digest = hashlib.blake2b(digest_size=6)
            for path in self.good_videos:
                with av.open(str(path)) as container:
                    for frame in container.decode(video=0):
                        digest.update(frame.to_ndarray(format="rgb24").tobytes())
            found["frames of videos"] = digest.hexdigest()
        return found


def _video(
    path: Path,
    codec: str,
    count: int,
    size: tuple[int, int],
    seed: int,
    *,
    pixels: str = "yuv420p",
    times: list[int] | None = None,
    options: dict[str, str] | None = None,
) -> None:
    """``times`` of the frames in milliseconds; 25 frames per second where there are none."""
    import av

    if codec not in av.codecs_available:
        raise Skip(f"this PyAV has no {codec}")
    path.parent.mkdir(parents=True, exist_ok=True)
    texture = picture(size[0] + 40, size[1] + 40, seed)
    with av.open(str(path), "w") as out:
        stream: Any = out.add_stream(codec, rate=25, options=options or {})
        stream.height, stream.width = size
        stream.pix_fmt = pixels
        stream.thread_count = 1
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for k in range(count):
            shown = np.roll(texture, (3 * k, 5 * k), (0, 1))[: size[0], : size[1]]
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(shown), format="rgb24")
            frame.pts, frame.time_base = (k, Fraction(1, 25)) if times is None else (times[k], Fraction(1, 1000))
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
