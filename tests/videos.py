"""Small videos of every kind that the index must know, recorded in ``recorded_videos/``, so that all tests see the same
files whatever this PyAV can encode. ``python tests/videos.py`` makes them again, with PyAV.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]

RECORDED = Path(__file__).with_name("recorded_videos")
BIT_EXACT = {"fflags": "+bitexact"}
"""Without it, Matroska files get random identifiers."""


def pictures(count: int, height: int, width: int, seed: int = 0) -> list[U8]:
    """u8[H, W, 3] each: a moving texture, so that no two frames are alike."""
    rng = np.random.default_rng(seed)
    texture = rng.integers(0, 255, (height // 4 + 12, width // 4 + 12, 3)).repeat(4, 0).repeat(4, 1).astype(np.uint8)
    return [
        np.ascontiguousarray(np.roll(texture, (3 * k, 5 * k), (0, 1))[:height, :width]) // 2 + np.uint8(4 * k % 128)
        for k in range(count)
    ]


def make_video(
    path: Path,
    codec: str = "libx264",
    *,
    frames: int = 40,
    size: tuple[int, int] = (64, 96),
    pixels: str = "yuv420p",
    rate: int | Fraction = 25,
    times: Sequence[int] | None = None,
    time_base: Fraction | None = None,
    options: dict[str, str] | None = None,
    container: dict[str, str] | None = None,
    rotation: tuple[int, bool, bool] | None = None,
    audio: bool = False,
    format: str | None = None,
    shown: Sequence[U8] | None = None,
) -> Path:
    """Encode ``frames`` pictures of ``size`` (height, width).

    Args:
        shown: the pictures u8[H, W, 3], instead of :func:`pictures`.
        times: of each frame in units of ``time_base``; at ``rate`` where ``None``.
        rotation: degrees counter-clockwise, flipped left to right, top to bottom.
    """
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", format=format, container_options={**BIT_EXACT, **(container or {})}) as out:
        stream: Any = out.add_stream(codec, rate=rate, options=options or {})
        stream.height, stream.width = size
        stream.pix_fmt = pixels
        stream.thread_count = 1
        if time_base is not None:
            stream.codec_context.time_base = time_base
        if rotation is not None:
            stream.set_display_rotation(rotation[0], hflip=rotation[1], vflip=rotation[2])
        sound: Any = out.add_stream("aac", rate=16000, layout="mono") if audio else None
        for k, picture in enumerate(pictures(frames, *size) if shown is None else shown):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = times[k], time_base
            else:
                frame.pts, frame.time_base = k, 1 / Fraction(rate)
            out.mux(stream.encode(frame))
            if sound is not None and k % 4 == 0:
                noise = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
                noise.sample_rate, noise.pts, noise.time_base = 16000, k // 4 * 1024, Fraction(1, 16000)
                out.mux(sound.encode(noise))
        out.mux(stream.encode(None))
        if sound is not None:
            out.mux(sound.encode(None))
    return path


def copied(
    source: Path, target: Path, *, shift: int = 0, drop: int = 0, container: dict[str, str] | None = None
) -> Path:
    """Its packets without decoding: times shifted by units, the first ``drop`` packets left out."""
    import av

    with (
        av.open(str(source)) as old,
        av.open(str(target), "w", container_options={**BIT_EXACT, **(container or {})}) as new,
    ):
        stream = old.streams.video[0]
        out = new.add_stream_from_template(stream)
        for k, packet in enumerate(old.demux(stream)):
            if (packet.dts is None and packet.pts is None) or k < drop:
                continue
            packet.pts += shift
            if packet.dts is not None:
                packet.dts += shift
            packet.stream = out
            new.mux(packet)
    return target


VFR = [0, 40, 90, 91, 130, 200, 210, 290, 300, 301, 302, 400, 480, 500, 600, 640, 650, 700, 790, 800, 805, 900]
MS = Fraction(1, 1000)
# b-adapt=0, or the encoder puts no B-frames before a key frame, and an open GOP would not be one.
_X264 = {"bf": "3", "g": "12", "keyint_min": "12", "sc_threshold": "0"}
OPEN = {**_X264, "x264-params": "open-gop=1:b-pyramid=normal:b-adapt=0"}
CLOSED = {**_X264, "x264-params": "open-gop=0:b-pyramid=normal:b-adapt=0"}
INTERLACED = {**_X264, "flags": "+ildct+ilme", "x264-params": "interlaced=1"}
X265 = {"x265-params": "keyint=12:bframes=3:b-adapt=0:open-gop=1:log-level=none"}
VPX = {"g": "12", "auto-alt-ref": "1", "lag-in-frames": "16", "cpu-used": "8", "b": "200k"}
B2 = {"bf": "2", "g": "12"}
LATE = [t + 777 for t in VFR]

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "cfr.mp4": ("libx264", {"options": {"bf": "0", "g": "12"}}),
    "bframes.mp4": ("libx264", {"options": CLOSED}),
    "bframes.mkv": ("libx264", {"options": CLOSED}),
    "ntsc.mp4": ("libx264", {"options": CLOSED, "rate": Fraction(30000, 1001)}),
    "open.mp4": ("libx264", {"options": OPEN}),
    "open.mkv": ("libx264", {"options": OPEN}),
    "faststart.mp4": ("libx264", {"options": OPEN, "container": {"movflags": "faststart"}}),
    "fragmented.mp4": ("libx264", {"options": CLOSED, "container": {"movflags": "frag_keyframe+empty_moov"}}),
    "refresh.mkv": ("libx264", {"options": {"g": "12", "bf": "0", "x264-params": "intra-refresh=1"}}),
    "interlaced.mp4": ("libx264", {"options": INTERLACED}),
    "vfr.mp4": ("libx264", {"options": CLOSED, "frames": 22, "times": VFR, "time_base": MS}),
    "vfr.mkv": ("libx264", {"options": CLOSED, "frames": 22, "times": VFR, "time_base": MS}),
    "late.mp4": ("libx264", {"options": CLOSED, "frames": 22, "times": LATE, "time_base": MS}),
    "rotated.mp4": ("libx264", {"options": CLOSED, "rotation": (90, False, False)}),
    "odd.mkv": ("libx264", {"options": CLOSED, "size": (37, 65), "pixels": "yuv444p"}),
    "cropped.mp4": ("libx264", {"options": CLOSED, "size": (38, 66)}),
    "audio.mp4": ("libx264", {"options": CLOSED, "audio": True}),
    "single.mp4": ("libx264", {"frames": 1}),
    "h264.avi": ("libx264", {"options": CLOSED}),
    "h264.ts": ("libx264", {"options": OPEN}),
    "h264.flv": ("libx264", {"options": CLOSED}),
    "hevc.mp4": ("libx265", {"options": X265}),
    "hevc.mkv": ("libx265", {"options": X265}),
    "mjpeg.avi": ("mjpeg", {"pixels": "yuvj420p", "size": (37, 65)}),
    "mpeg4.avi": ("mpeg4", {"options": B2}),
    "mpeg4.mp4": ("mpeg4", {"options": B2}),
    "vp9.webm": ("libvpx-vp9", {"options": VPX}),
    "vp8.webm": ("libvpx", {"options": VPX}),
    "av1.mkv": ("libsvtav1", {"options": {"g": "12", "preset": "12"}}),
    "ffv1.mkv": ("ffv1", {"options": {"g": "8"}}),
    "mpeg2.ts": ("mpeg2video", {"options": B2}),
    "mpeg2.mpg": ("mpeg2video", {"options": B2}),
    "gif.gif": ("gif", {"pixels": "rgb8", "frames": 12}),
}
"""Name: (encoder, arguments of :func:`make_video`)."""

UNSHIFTED = {"avoid_negative_ts": "disabled"}
COPIES: dict[str, tuple[str, dict[str, Any]]] = {
    "edited.mp4": ("bframes.mp4", {"shift": -17 * 512, "container": UNSHIFTED}),
    "open-edited.mp4": ("open.mp4", {"shift": -17 * 512, "container": UNSHIFTED}),
    "negative.mkv": ("bframes.mp4", {"shift": -7 * 512, "container": UNSHIFTED}),
    "middle.mp4": ("open.mp4", {"drop": 5}),
    "middle.mkv": ("open.mp4", {"drop": 5}),
    "leading.mkv": ("open.mp4", {"drop": 9}),
}
"""Name: (which of the others, arguments of :func:`copied`). Edit lists, times before zero, beginnings that are none."""


def recorded() -> dict[str, Path]:
    """The recorded videos by name."""
    return {name: RECORDED / name for name in (*KINDS, *COPIES)}


def make_all(folder: Path, size: tuple[int, int] = (64, 96)) -> dict[str, Path]:
    """Every kind of video that the encoders of this PyAV can make; of ``size`` (height, width) if the kind has none of
    its own."""
    # In a thread that ends with it: where root runs it, SVT-AV1 makes the thread that encodes a real-time one
    # (SCHED_FIFO), and every process that the tests start from there on would inherit it.
    with ThreadPoolExecutor(1) as alone:
        return alone.submit(_make_all, folder, size).result()


def _make_all(folder: Path, size: tuple[int, int]) -> dict[str, Path]:
    import av

    made = {}
    for name, (codec, arguments) in KINDS.items():
        # PyAV before 17.1 writes no rotation.
        able = "rotation" not in arguments or hasattr(av.video.stream.VideoStream, "set_display_rotation")
        if codec in av.codecs_available and able:
            made[name] = make_video(folder / name, codec, **{"size": size, **arguments})
    for name, (source, arguments) in COPIES.items():
        if source in made:
            made[name] = copied(made[source], folder / name, **arguments)
    return made


def decoded(path: Path | str) -> tuple[list[int | None], list[U8], Exception | None]:
    """(times, pixels u8[H, W, 3]) of all frames of a plain loop over them, and what ended it too early."""
    import av

    times: list[int | None] = []
    pixels = []
    try:
        with av.open(str(path)) as container:
            for frame in container.decode(video=0):
                times.append(frame.pts)
                pixels.append(frame.to_ndarray(format="rgb24"))
    except Exception as e:
        return times, pixels, e
    return times, pixels, None


if __name__ == "__main__":
    RECORDED.mkdir(exist_ok=True)
    make_all(RECORDED)
