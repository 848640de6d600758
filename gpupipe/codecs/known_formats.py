"""Names what a file is that Pillow cannot open, and what it takes to read it."""

from __future__ import annotations

_HEIF = "pip install pillow-heif, and call pillow_heif.register_heif_opener() before the dataset is made"
_JXL = "pip install pillow-jxl-plugin, and import pillow_jxl before the dataset is made"
_SHARDS = "not an image but a container of many; open it with the dataset of its format"

_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    *((4, b"ftyp" + brand, f"a HEIF image: {_HEIF}") for brand in (
        b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1",
    )),
    *((4, b"ftyp" + brand, "an AVIF image: Pillow 11.3 reads it, or pip install pillow-avif-plugin and import "
       "pillow_avif before the dataset is made") for brand in (b"avif", b"avis")),
    (4, b"ftyp", "a video, or an image of phones that Pillow does not know; videos are for datasets.VideoFolder"),
    (0, b"\xff\x0a", f"a JPEG XL image: {_JXL}"),
    (0, b"\0\0\0\x0cJXL \r\n\x87\n", f"a JPEG XL image: {_JXL}"),
    (0, b"\x1a\x45\xdf\xa3", "a Matroska or WebM video; videos are for datasets.VideoFolder"),
    (0, b"II\xbc\x01", "a JPEG XR image; convert it to a format that Pillow reads"),
    (0, b"\x76\x2f\x31\x01", "an OpenEXR image; convert it to a format that Pillow reads"),
    (0, b"#?RADIANCE", "a Radiance HDR image; convert it to a format that Pillow reads"),
    (0, b"FUJIFILMCCD-RAW", "a raw photograph; convert it, or register a plugin of Pillow that reads it"),
    (0, b"\x93NUMPY", "a NumPy array; datasets.Arrays takes arrays of pixels"),
    (128, b"DICM", "a DICOM image; pip install pydicom, and convert it to a format that Pillow reads"),
    (0, b"PAR1", f"a Parquet file, {_SHARDS}: gpupipe.datasets.HuggingFace(datasets.load_dataset("
     '"parquet", data_files=..., split="train"), ...)'),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file, not an image but a container; a Dataset of your own opens it "
     "with h5py"),
    (0, b"PK\x03\x04", f"a zip file, {_SHARDS}: datasets.Zip"),
    (257, b"ustar", f"a tar file, {_SHARDS}: datasets.WebDataset"),
    (0, b"%PDF", "a PDF document"),
    (0, b"\x1f\x8b", "a file compressed by gzip; unpack it"),
    (0, b"\x28\xb5\x2f\xfd", "a file compressed by Zstandard; unpack it"),
)  # fmt: skip
HEAD = 264
"""Bytes that decide."""


def known_as(head: bytes) -> str | None:
    """Return what a file that begins with ``head`` is, and what reads it; ``None`` if it is unknown.

    >>> known_as(b"\\xff\\x0a" + bytes(10))
    'a JPEG XL image: pip install pillow-jxl-plugin, and import pillow_jxl before the dataset is made'
    """
    for at, magic, what in _SIGNATURES:
        if head[at : at + len(magic)] == magic:
            return what
    return "an SVG drawing; convert it to pixels" if b"<svg" in head else None
