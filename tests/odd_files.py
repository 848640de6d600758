"""Files that decoders disagree about, made here: pictures in every coding, and everything that can be wrong."""

from __future__ import annotations

import io
import struct
import zlib
from functools import partial
from typing import Any

import numpy as np
from PIL import Image, features
from support import encode as _encode, images_of, outcomes

from gpupipe import DataLoader, SampleError
from gpupipe.testing.photos import photograph

__all__ = ["DAMAGED", "FAULTS", "JPEG", "PICTURES", "encode", "picture"]


def picture(height: int = 61, width: int = 83, seed: int = 1) -> Image.Image:
    return Image.fromarray(photograph(height, width, seed))


def encode(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    return _encode(image.copy(), kind, **options)  # Pillow keeps the settings of an encoder with the image


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, depth: int, color: int, rows: bytes) -> bytes:
    """A PNG that Pillow does not write; ``rows`` are packed bytes, each row behind a zero."""
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")


def _rows(pixels: Any) -> bytes:
    return b"".join(b"\0" + row.tobytes() for row in pixels)


def _deep(color: int, channels: int) -> bytes:
    """A PNG of 16 bits whose low bytes matter."""
    rgb = np.asarray(picture())
    pixels = np.concatenate([rgb, rgb[..., :1]], axis=2).astype(">u2") * 256 + np.arange(83)[:, None]
    return png(83, 61, 16, color, _rows(pixels[..., :channels].astype(">u2")))


def _bmp(bits: int, compression: int, body: bytes, masks: bytes = b"") -> bytes:
    at = 54 + len(masks)
    info = struct.pack("<IiiHHIIiiII", 40, 83, 61, 1, bits, compression, len(body), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", at + len(body), 0, 0, at) + info + masks + body


def _bmp16(green_bits: int) -> bytes:
    r, g, b = np.moveaxis(np.asarray(picture())[::-1].astype(np.uint16), 2, 0)
    packed = (r >> 3) << (5 + green_bits) | (g >> (8 - green_bits)) << 5 | b >> 3
    return np.pad(packed.astype("<u2"), ((0, 0), (0, 1))).tobytes()


def _pictures() -> dict[str, bytes]:
    rgb = picture()
    gray, alpha = rgb.convert("L"), picture(seed=2).convert("L")
    rgba, la, bits = rgb.copy(), gray.copy(), rgb.convert("1")
    rgba.putalpha(alpha)
    la.putalpha(alpha)
    palette = rgb.quantize(64)
    deep = Image.fromarray((np.asarray(gray).astype(np.uint16) * 257) ^ 3)
    pixels = np.asarray(rgb)

    jpeg = partial(encode, kind="JPEG")
    good = jpeg(rgb)
    files = {
        "rgb.jpg": good,
        "gray.jpg": jpeg(gray),
        # CMYK with black in it, which Pillow and DALI turn to RGB by different rules.
        "cmyk.jpg": jpeg(Image.merge("CMYK", [*rgb.split(), alpha])),
        "progressive.jpg": jpeg(rgb, progressive=True),
        "444.jpg": jpeg(rgb, subsampling="4:4:4"),
        "422.jpg": jpeg(rgb, subsampling="4:2:2"),
        "rgb-in-jpeg.jpg": jpeg(rgb, keep_rgb=True),
        "restarts.jpg": jpeg(rgb, restart_marker_blocks=2),
        "junk.jpg": good[:20] + b"junk between segments" + good[20:],
        "fill.jpg": good[:2] + b"\xff" + good[2:],
        "behind.jpg": good + bytes(300) + b"camera",
        "png-named.jpg": encode(rgb, "PNG"),
        "gif-named.jpg": encode(palette, "GIF"),
        "two.mpo": encode(rgb, "MPO", save_all=True, append_images=[rgb.rotate(180)]),
        "deep.png": encode(deep, "PNG"),
        "deep-rgb.png": _deep(2, 3),
        "deep-rgba.png": _deep(6, 4),
        "gray2.png": png(83, 61, 2, 0, _rows(np.asarray(gray)[:, :21])),
        "gray4.png": png(83, 61, 4, 0, _rows(np.asarray(gray)[:, :42])),
        "palette1.png": encode(rgb.quantize(2), "PNG"),
        "palette2.png": encode(rgb.quantize(4), "PNG"),
        "palette4.png": encode(rgb.quantize(16), "PNG"),
        "transparent.png": encode(rgba.quantize(64), "PNG"),
        "key.png": encode(rgb, "PNG", transparency=(10, 20, 30)),
        "animated.png": encode(rgb, "PNG", save_all=True, append_images=[rgb.rotate(180)]),
        "no-end.png": encode(rgb, "PNG")[:-12],
        "animated.webp": encode(rgb, "WEBP", save_all=True, append_images=[rgb.rotate(180)]),
        "lossless.webp": encode(rgb, "WEBP", lossless=True),
        "lossless-exif.webp": encode(rgb, "WEBP", lossless=True, exif=exif(1)),
        "565.bmp": _bmp(16, 3, _bmp16(6), struct.pack("<III", 0xF800, 0x7E0, 0x1F)),
        "555.bmp": _bmp(16, 0, _bmp16(5)),
        "alpha.bmp": encode(rgba, "BMP"),
        "deep.pgm": encode(deep, "PPM"),
        "maximum100.ppm": b"P6 83 61 100\n" + (pixels // 3).tobytes(),
        "ascii.ppm": b"P3 83 61 255\n" + " ".join(map(str, pixels.ravel())).encode() + b"\n",
        "comment.ppm": b"P6\n# why\n83 61\n255\n" + pixels.tobytes(),
        "animated.gif": encode(palette, "GIF", save_all=True, append_images=[rgb.rotate(180).quantize(64)]),
        "planar.tif": encode(rgb, "TIFF", tiffinfo={284: 2}),
        "predictor.tif": encode(rgb, "TIFF", compression="tiff_lzw", tiffinfo={317: 2}),
        "cmyk.tif": encode(Image.merge("CMYK", [*rgb.split(), alpha]), "TIFF"),
        "deep.tif": encode(deep, "TIFF"),
        "float.tif": encode(gray.convert("F"), "TIFF"),
        "pages.tif": encode(rgb, "TIFF", save_all=True, append_images=[rgb.rotate(180)]),
        "raw.j2k": encode(gray, "JPEG2000", no_jp2=True),
    }
    for name, image in {"rgb": rgb, "gray": gray, "rgba": rgba, "la": la, "p": palette, "bits": bits}.items():
        files[f"{name}.png"] = encode(image, "PNG")
        files[f"{name}.tif"] = encode(image, "TIFF")
        files[f"{name}.webp"] = encode(image, "WEBP")
        files[f"{name}.gif"] = encode(image, "GIF")
        files[f"{name}.tga"] = encode(image, "TGA")
        if name not in ("la", "rgba"):
            files[f"{name}.bmp"] = encode(image, "BMP")
        if name in ("rgb", "gray", "bits"):
            files[f"{name}.ppm"] = encode(image, "PPM")
        if name in ("rgb", "gray", "rgba", "la"):
            files[f"{name}.jp2"] = encode(image, "JPEG2000")
        if name in ("rgb", "gray", "rgba") and features.check("avif"):
            files[f"{name}.avif"] = encode(image, "AVIF")
        if name in ("rgb", "gray", "rgba"):
            for codec in ("tiff_lzw", "tiff_adobe_deflate", "packbits"):
                files[f"{name}-{codec}.tif"] = encode(image, "TIFF", compression=codec)
    for turn in (3, 6):
        for kind, end in {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "TIFF": "tif"}.items():
            files[f"turned{turn}.{end}"] = encode(rgb, kind, exif=exif(turn))
    xmp = (
        b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        b'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>'
    )
    files["turned-by-xmp.jpg"] = jpeg(rgb, xmp=xmp)
    return files


def _bomb() -> bytes:
    """Says that it has 40,000 x 40,000 pixels."""
    out = io.BytesIO()
    picture(40, 60).save(out, "BMP")
    content = bytearray(out.getvalue())
    content[18:26] = (40_000).to_bytes(4, "little") * 2
    return bytes(content)


def _cut(content: bytes, keep: float = 0.5) -> bytes:
    return content[: int(len(content) * keep)]


PICTURES = _pictures()
"""Name and content of files that Pillow decodes."""
JPEG = encode(picture(40, 60))

FAULTS: dict[str, tuple[bytes | None, str]] = {
    "missing.jpg": (None, "missing"),
    "empty.jpg": (b"", "empty"),
    "cut.jpg": (_cut(JPEG), "truncated"),
    "nearly.jpg": (JPEG[:-40], "truncated"),
    "header.jpg": (JPEG[: JPEG.rindex(b"\xff\xda") + 14], "truncated"),
    "cut.png": (_cut(encode(picture(), "PNG")), "truncated"),
    "cut.webp": (_cut(encode(picture(), "WEBP")), "truncated"),
    "cut.bmp": (_cut(encode(picture(), "BMP")), "truncated"),
    "cut.tif": (_cut(encode(picture(), "TIFF", compression="tiff_lzw", big_tiff=False)), "truncated"),
    "random.jpg": (np.random.default_rng(0).bytes(5000), "undecodable"),
    "page.jpg": (b"<!DOCTYPE html><html><body>404 Not Found</body></html>", "undecodable"),
    "bomb.bmp": (_bomb(), "bomb"),
    "nothing.png": (png(0, 0, 8, 2, b""), "undecodable"),
}
"""Name, content (``None``: no such file) and kind of failure."""

_PNG = encode(picture(), "PNG")
DAMAGED = _PNG[:2000] + bytes(100) + _PNG[2100:]
"""A file that is whole and wrong inside: only decoding it tells."""


def outcome(dataset: Any, engine: Any) -> list[Any]:
    """Return u8[H, W, 3] of each sample, or its kind of failure."""
    results: list[Any] = []
    with DataLoader(dataset, batch_size=1, engine=engine, device="cpu", seed=0) as loader:
        for found in outcomes(loader):
            if isinstance(found, SampleError):
                (sample,) = found.samples
                results.append(sample.kind if sample.reason and sample.path else "nameless")
            else:
                results.append(images_of(found)[0].permute(1, 2, 0).numpy().copy())
    return results
