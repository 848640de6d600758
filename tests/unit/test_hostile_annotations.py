"""Annotations that would crash C code, take gigabytes, or are no numbers: bad samples of their images."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gpupipe import DataLoader, datasets, transforms as T
from gpupipe.codecs.files import Undecodable
from gpupipe.errors import DatasetError, SampleError
from gpupipe.targets.drawing import draw_polygons, draw_runs, unpacked_runs

H, W = 30, 40
KEYS = ("image_id", "boxes", "labels", "masks", "area", "iscrowd", "keypoints")
GOOD = {
    "image_id": 0, "category_id": 1, "iscrowd": 0, "area": 5.0, "bbox": [1, 2, 3, 4],
    "segmentation": [[1, 1, 9, 1, 5, 12.5]], "keypoints": [1, 2, 2, 3, 4, 1],
}  # fmt: skip
NAN, INF = float("nan"), float("inf")


def dataset(folder: Path, changes: list[dict[str, Any]]) -> datasets.CocoDetection:
    """An image for every change of an annotation, between two good ones."""
    objects = [GOOD, *({**GOOD, **change} for change in changes), GOOD]
    for k in range(len(objects)):
        Image.new("RGB", (W, H), (k, 0, 0)).save(folder / f"{k}.png")
    images = [{"id": k, "file_name": f"{k}.png"} for k in range(len(objects))]
    annotations = [{**one, "image_id": k, "id": 100 + k} for k, one in enumerate(objects)]
    (folder / "a.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    return datasets.CocoDetection(folder, folder / "a.json", T.Resize((8, 8)), target_keys=KEYS)


WRONG: dict[str, Any] = {
    "a polygon with a NaN": {"segmentation": [[1, 1, 9, NAN, 5, 12.5]]},
    "a polygon with an infinity": {"segmentation": [[1, 1, 9, 1, 5, -INF]]},
    "a polygon with an endless integer": {"segmentation": [[1, 1, 9, 1, 5, 10**400]]},
    "a polygon of texts": {"segmentation": [["1", "1", "9", "1", "5", "2"]]},
    "an odd polygon": {"segmentation": [[1, 1, 9, 1, 5, 2, 7]]},
    "no polygon": {"segmentation": None},
    "outlines longer than a book": {"segmentation": [[0, 0, W, H] * 400_000]},
    "outlines that leave the image": {"segmentation": [[-1e7, 5, 1e7, 5, 1e7, 15, -1e7, 15]]},
    "outlines beyond 32 bits": {"segmentation": [[1e9, 1e9, 1e9 + 1, 1e9, 1e9, 1e9 + 1]]},
    "outlines beyond floats": {"segmentation": [[1e308, 20, 1e308, 25, -1e308, 25, -1e308, 20]]},
    "run lengths below 0": {"segmentation": {"size": [H, W], "counts": [H * W + 5, -5]}},
    "run lengths that overflow": {"segmentation": {"size": [H, W], "counts": [2**62, 2**62, 2**62, 2**62 + H * W]}},
    "run lengths beyond the image": {"segmentation": {"size": [H, W], "counts": [2**31 - 1] * 3}},
    "run lengths of a world": {"segmentation": {"size": [10**9, 10**9], "counts": [10**18]}},
    "run lengths without an end": {"segmentation": {"size": [H, W], "counts": "o" * 500}},
    "run lengths of a text": {"segmentation": {"size": [H, W], "counts": "hello world"}},
    "run lengths of a float": {"segmentation": {"size": [H, 40.5], "counts": "0"}},
    "a box with a NaN": {"bbox": [1, NAN, 3, 4]},
    "a box beyond floats": {"bbox": [1, 2, 3, 1e39]},
    "a box of three": {"bbox": [1, 2, 3]},
    "a class beyond 64 bits": {"category_id": 2**63},
    "a class without a number": {"category_id": None},
    "a crowd that is infinite": {"iscrowd": INF},
    "an area that is a text": {"area": "5"},
    "two numbers of a keypoint": {"keypoints": [1, 2]},
    "a keypoint with an infinity": {"keypoints": [1, 2, 2, INF, 4, 1]},
}


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> datasets.CocoDetection:
    return dataset(tmp_path_factory.mktemp("wrong"), [*WRONG.values()])


def test_every_bad_annotation_is_a_bad_sample_of_its_image(wrong: datasets.CocoDetection) -> None:
    loader = DataLoader(wrong, 4, engine="torch", num_workers=0, device="cpu", on_error="skip")
    with loader:
        seen = [i for batch in loader for i in batch["image_id"].tolist()]
    assert sorted(seen) == [0, len(wrong) - 1], [name for k, name in enumerate(WRONG, 1) if k in seen]


@pytest.mark.parametrize("name", ["a polygon with a NaN", "run lengths without an end", "a class beyond 64 bits"])
def test_a_bad_annotation_is_named(wrong: datasets.CocoDetection, name: str) -> None:
    with pytest.raises(SampleError, match=r"\.png.*: (annotation: annotation 1\d\d: (segm|categ)|mask: compressed)"):
        wrong[1 + [*WRONG].index(name)]


def test_only_requested_values_are_judged(wrong: datasets.CocoDetection) -> None:
    boxes = datasets.CocoDetection(wrong.root, f"{wrong.root}/a.json", target_keys=["boxes"])
    bad = [sample.index - 1 for sample in boxes.bad(np.arange(len(boxes)))]
    assert [name.split()[1] for k, name in enumerate(WRONG) if k in bad] == ["box"] * 3


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools
def test_polygons_a_little_outside_are_drawn_as_by_pycocotools() -> None:
    coco = pytest.importorskip("pycocotools.mask")
    rng = np.random.default_rng(0)
    for spread in (10, 100, 3000):
        for _ in range(50):
            polygons = [rng.uniform(-spread, spread + 40, 2 * int(rng.integers(3, 12))) for _ in range(2)]
            theirs = coco.decode(coco.merge(coco.frPyObjects([p.tolist() for p in polygons], H, W)))
            np.testing.assert_array_equal(draw_polygons(polygons, (H, W)), theirs)


def test_compressed_run_lengths_are_read_as_by_pycocotools() -> None:
    coco = pytest.importorskip("pycocotools.mask")
    rng = np.random.default_rng(1)
    for share in (0.0, 0.001, 0.5, 1.0):
        for size in ((1, 1), (7, 300), (400, 500)):
            mask = np.asfortranarray(rng.random(size) < share, np.uint8)
            text = coco.encode(mask)["counts"]
            np.testing.assert_array_equal(draw_runs(unpacked_runs(text), size), mask)


def test_damaged_run_lengths_are_refused_whatever_they_are() -> None:
    rng = np.random.default_rng(2)
    for _ in range(2000):
        text = rng.integers(40, 120, rng.integers(0, 40), np.uint8).tobytes()
        with suppress(Undecodable):
            assert draw_runs(unpacked_runs(text), (5, 7)).shape == (5, 7)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"images": ' + "[" * 200_000 + "]" * 200_000 + "}", "nested too deeply"),
        ('{"images": [{"id": Infinity, "file_name": "0.png"}]}', "not in COCO's format"),
        ('{"images": [{"id": 36893488147419103232, "file_name": "0.png"}]}', "not in COCO's format"),
        ('{"images": [{"id": 1, "file_name": "0.png"}], "annotations": [{"image_id": 1}]}', "not in COCO's.*bbox"),
    ],
    ids=["deep", "infinite", "large", "without boxes"],
)
def test_a_file_that_is_wrong_as_a_whole_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DatasetError, match=reason):
        datasets.CocoDetection(tmp_path, tmp_path / "a.json")
