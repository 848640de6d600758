"""Masks, boxes, keypoints and second images that go through torchvision v2 transforms with their image."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, Subset
from torchvision import datasets, tv_tensors
from torchvision.transforms import v2

from ..harness.script import Args, Epochs, script
from .common import IMAGENET_MEAN, IMAGENET_STD
from .kaggle import table

IMAGE = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
FINISH = [
    v2.ToImage(),
    v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True),
    v2.Normalize(IMAGENET_MEAN, IMAGENET_STD),
]
FEW = 16
"""Pictures are enough."""
CROP = v2.Compose([v2.RandomResizedCrop(32, antialias=True), v2.RandomHorizontalFlip(), *FINISH])
VAL = v2.Compose([v2.Resize(36), v2.CenterCrop(32), *FINISH])


def in_lists(batch: list[Any]) -> Any:
    return tuple(zip(*batch, strict=True))


def in_one(batch: list[Any]) -> Any:
    images, targets = zip(*batch, strict=True)
    return torch.stack(images), {
        key: torch.cat([target[key] for target in targets]) for key in ("boxes", "labels", "masks") if key in targets[0]
    }


class Files(Dataset[Any]):
    """Files by name, and a transform of images and what belongs to them."""

    def __init__(self, root: Any, transforms: Any):
        self.root, self.transforms = root, transforms
        self.names = [row["image_id"] for row in table(root / "train.csv") if int(row["label"]) < FEW]

    def __len__(self) -> int:
        return len(self.names)

    def image(self, i: int) -> Image.Image:
        return Image.open(self.root / "images" / f"{self.names[i]}.jpg").convert("RGB")

    def mask(self, i: int) -> Image.Image:
        return Image.open(self.root / "masks" / f"{self.names[i]}.png")


def epochs(args: Args, DataLoader: Any, dataset: Any, val: Any = None, **options: Any) -> Epochs:
    """The loop that all of them share."""
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=args.workers, **options)
    yield from [loader] * args.epochs
    if val is not None:
        yield DataLoader(Subset(val, range(10)), batch_size=5, **options)


# ---- segmentation


class Segmentation(Files):
    def __getitem__(self, i: int) -> Any:
        image, mask = self.transforms(self.image(i), tv_tensors.Mask(self.mask(i)))
        return image, mask, i


@script(engine="dali", workers=1)
def segmentation_pairs(args: Args, DataLoader: Any) -> Epochs:
    """The tutorial on tv_tensors: an image and its mask through one pipeline, by the names of the files."""
    yield from epochs(args, DataLoader, Segmentation(args.data, CROP), Segmentation(args.data, VAL))


@script(engine="dali")
def voc_segmentation(args: Args, DataLoader: Any) -> Epochs:
    """VOCSegmentation, wrapped, with one argument for both."""

    def dataset(transforms: Any) -> Any:
        return datasets.wrap_dataset_for_transforms_v2(datasets.VOCSegmentation(args.data, transforms=transforms))

    yield from epochs(args, DataLoader, dataset(CROP), dataset(VAL))


@script(engine="dali")
def ignored_borders(args: Args, DataLoader: Any) -> Epochs:
    """torchvision's segmentation reference with v2: a random size, and padding that the loss ignores."""
    fill = {tv_tensors.Mask: 255, "others": 0}
    pad = v2.RandomCrop(48, pad_if_needed=True, fill=fill)
    train = v2.Compose([v2.RandomResize(24, 64), v2.RandomHorizontalFlip(), pad, *FINISH, v2.ToPureTensor()])
    yield from epochs(args, DataLoader, Segmentation(args.data, train))


@script(engine="torch")
def padded_batches(args: Args, DataLoader: Any) -> Epochs:
    """torchvision's segmentation reference: images of any size, padded while collating."""

    def cat_list(images: Any, fill: int) -> Tensor:
        size = tuple(max(s) for s in zip(*[image.shape for image in images], strict=True))
        batch = images[0].new(len(images), *size).fill_(fill)
        for image, place in zip(images, batch, strict=True):
            place[..., : image.shape[-2], : image.shape[-1]].copy_(image)
        return batch

    def collate_fn(batch: list[Any]) -> Any:
        images, targets, names = zip(*batch, strict=True)
        return cat_list(images, 0), cat_list(targets, 255), names

    transforms = v2.Compose([v2.Resize(32), *FINISH, v2.ToPureTensor()])
    yield from epochs(args, DataLoader, Segmentation(args.data, transforms), collate_fn=collate_fn)


@script(engine="dali")
def pet_trimaps(args: Args, DataLoader: Any) -> Epochs:
    """OxfordIIITPet: category and trimap of each pet, wrapped."""
    pets = datasets.OxfordIIITPet(args.data, target_types=["category", "segmentation"], transforms=CROP)
    yield from epochs(args, DataLoader, datasets.wrap_dataset_for_transforms_v2(pets))


@script(engine="torch")
def cityscapes(args: Args, DataLoader: Any) -> Epochs:
    """Cityscapes, wrapped: semantic masks of full size, random scale."""
    train = v2.Compose([v2.ScaleJitter((64, 64), (0.9, 1.6)), v2.RandomCrop(40, pad_if_needed=True), *FINISH])
    found = datasets.Cityscapes(args.data / "cityscapes", target_type="semantic", transforms=train)
    yield from epochs(args, DataLoader, datasets.wrap_dataset_for_transforms_v2(found))


@script(engine="dali")
def one_dictionary(args: Args, DataLoader: Any) -> Epochs:
    """A sample is a dictionary, also for the transform; the mask is of floats, for a binary loss."""

    class Samples(Files):
        def __getitem__(self, i: int) -> Any:
            mask = torch.from_numpy(np.array(self.mask(i)) > 0)[None].float()
            return self.transforms({"image": self.image(i), "mask": tv_tensors.Mask(mask), "id": i})

    transforms = v2.Compose([v2.RandomCrop(32), v2.RandomVerticalFlip(), IMAGE])
    yield from epochs(args, DataLoader, Samples(args.data, transforms))


@script(engine="dali")
def warps_and_colours(args: Args, DataLoader: Any) -> Epochs:
    """A strong augmentation of images and masks: affine, perspective, jitter, blur, each by chance."""
    train = v2.Compose(
        [
            v2.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 5, fill={tv_tensors.Mask: 255, "others": 0}),
            v2.RandomApply([v2.RandomPerspective(0.3, p=1.0)], p=0.3),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            v2.RandomApply([v2.GaussianBlur(3)], p=0.3),
            v2.Resize((32, 32)),
            *FINISH,
        ]
    )
    yield from epochs(args, DataLoader, Segmentation(args.data, train))


@script(engine="some")
def gray_slices(args: Args, DataLoader: Any) -> Epochs:
    """Medical slices: gray images and their masks, rotated and deformed."""

    class Slices(Segmentation):
        def image(self, i: int) -> Image.Image:
            return super().image(i).convert("L")

    train = v2.Compose(
        [v2.RandomRotation(15), v2.RandomApply([v2.ElasticTransform(20.0)], p=0.5), v2.RandomCrop(40), *FINISH[:2]]
    )
    yield from epochs(args, DataLoader, Slices(args.data, v2.Compose([*train.transforms, v2.Normalize([0.5], [0.5])])))


@script(engine="dali")
def several_masks(args: Args, DataLoader: Any) -> Epochs:
    """A mask for each class, as a list, and a depth map of floats."""

    class Classes(Files):
        def __getitem__(self, i: int) -> Any:
            classes = np.array(self.mask(i))
            depth = tv_tensors.Mask(np.linspace(0, 1, classes.size, dtype=np.float32).reshape(classes.shape))
            masks = [tv_tensors.Mask(classes == k) for k in (1, 2, 255)]
            image, masks, depth = self.transforms(self.image(i), masks, depth)
            return {"image": image, "masks": torch.stack(masks), "depth": depth, "index": i}

    yield from epochs(args, DataLoader, Classes(args.data, v2.Compose(CROP.transforms[:3])))


@script(engine="dali")
def masks_as_images(args: Args, DataLoader: Any) -> Epochs:
    """A beginner's script: the mask is a PIL image, which torchvision resizes as one."""

    class Images(Files):
        def __getitem__(self, i: int) -> Any:
            image, mask = self.transforms(self.image(i), self.mask(i))
            return image, mask, i

    yield from epochs(args, DataLoader, Images(args.data, v2.Compose([v2.RandomCrop(40), v2.Resize(32), IMAGE])))


@script(engine="dali")
def train_and_val_subsets(args: Args, DataLoader: Any) -> Epochs:
    """A split by indices, with a transform for each side in a wrapper."""

    class Transformed(Dataset[Any]):
        def __init__(self, subset: Any, transforms: Any):
            self.subset, self.transforms = subset, transforms

        def __len__(self) -> int:
            return len(self.subset)

        def __getitem__(self, i: int) -> Any:
            image, mask, name = self.subset[i]
            image, mask = self.transforms(image, mask)
            return image, mask.squeeze(0), name

    def raw(image: Any, mask: Any) -> Any:
        return image, mask

    files = Segmentation(args.data, raw)
    order = np.random.RandomState(0).permutation(len(files)).tolist()
    train, val = Subset(files, order[10:]), Subset(files, order[:10])
    yield from epochs(args, DataLoader, Transformed(train, CROP), Transformed(val, VAL))


@script(engine="dali")
def own_v2_transform(args: Args, DataLoader: Any) -> Epochs:
    """torchvision's segmentation reference: a transform of its own that pads."""

    class PadIfSmaller(v2.Transform):
        def __init__(self, size: int):
            super().__init__()
            self.size = size

        def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
            height, width = v2.functional.get_size(flat_inputs[0])
            return {"padding": [0, 0, max(self.size - width, 0), max(self.size - height, 0)]}

        def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
            return v2.functional.pad(inpt, params["padding"]) if any(params["padding"]) else inpt

    transforms = v2.Compose([PadIfSmaller(70), v2.RandomCrop(64), *FINISH])
    yield from epochs(args, DataLoader, Segmentation(args.data, transforms))


# ---- detection


class Detection(Files):
    """Boxes as a dictionary of tv_tensors, as torchvision's detection models take them."""

    def __init__(self, root: Any, transforms: Any):
        super().__init__(root, transforms)
        self.annotations = json.loads((root / "boxes.json").read_text())

    def target(self, i: int) -> dict[str, Any]:
        found = self.annotations[self.names[i]]
        boxes = tv_tensors.BoundingBoxes(found["boxes"], format="XYXY", canvas_size=found["size"])
        return {"boxes": boxes, "labels": torch.tensor(found["labels"]), "image_id": i}

    def __getitem__(self, i: int) -> Any:
        return self.transforms(self.image(i), self.target(i))


def detection(
    args: Args, DataLoader: Any, *steps: Any, kind: Callable[..., Any] = Detection, collate_fn: Any = in_lists
) -> Epochs:
    transforms = v2.Compose([*steps, v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    yield from epochs(args, DataLoader, kind(args.data, transforms), collate_fn=collate_fn)


@script(engine="dali", workers=1)
def detection_flips(args: Args, DataLoader: Any) -> Epochs:
    """torchvision's detection reference, hflip: images of any size in lists."""
    yield from detection(args, DataLoader, v2.RandomHorizontalFlip())


@script(engine="dali")
def detection_multiscale(args: Args, DataLoader: Any) -> Epochs:
    """torchvision's detection reference, multiscale."""
    yield from detection(args, DataLoader, v2.RandomShortestSize(range(36, 60), max_size=80), v2.RandomHorizontalFlip())


@script(engine="dali")
def detection_large_scale_jitter(args: Args, DataLoader: Any) -> Epochs:
    """torchvision's detection reference, large scale jitter; boxes that left the image are removed."""

    def collate_fn(batch: list[Any]) -> Any:
        boxes = torch.full((len(batch), 4, 4), -1.0)
        for row, (_, target) in zip(boxes, batch, strict=True):
            row[: len(target["boxes"])] = target["boxes"]
        return torch.stack([image for image, _ in batch]), boxes

    steps = [v2.ScaleJitter((48, 48), (0.5, 1.5)), v2.RandomCrop(48, pad_if_needed=True, fill=127)]
    steps += [v2.RandomHorizontalFlip(), v2.SanitizeBoundingBoxes(min_size=2)]
    yield from detection(args, DataLoader, *steps, collate_fn=collate_fn)


@script(engine="dali")
def ssd_without_crops(args: Args, DataLoader: Any) -> Epochs:
    """SSD's augmentation but for the crop: photometric distortion, zooming out, resized to one size."""
    steps = [v2.RandomPhotometricDistort(p=0.5), v2.RandomZoomOut(fill=[123, 117, 104]), v2.RandomHorizontalFlip()]
    yield from detection(args, DataLoader, *steps, v2.Resize((48, 48)), v2.ConvertBoundingBoxFormat("CXCYWH"))


@script(engine="dali")
def ssd_with_crops(args: Args, DataLoader: Any) -> Epochs:
    """torchvision's detection reference, ssdlite: crops that are drawn by the boxes."""
    yield from detection(args, DataLoader, v2.RandomIoUCrop(), v2.RandomHorizontalFlip(), v2.SanitizeBoundingBoxes())


@script(engine="dali", workers=1, needs=("pycocotools",))
def ssd(args: Args, DataLoader: Any) -> Epochs:
    """torchvision's detection reference, ssd: CocoDetection, wrapped, zoomed out and cropped by the boxes."""
    steps = [
        v2.RandomPhotometricDistort(),
        v2.RandomZoomOut(fill={tv_tensors.Image: (123, 117, 104), "others": 0}, side_range=(1.0, 2.0)),
        v2.RandomIoUCrop(),
        v2.RandomHorizontalFlip(),
        v2.Resize((40, 40)),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.SanitizeBoundingBoxes(),
        v2.ToPureTensor(),
    ]
    coco = datasets.CocoDetection(args.data / "images", args.data / "coco.json", transforms=v2.Compose(steps))
    wrapped = datasets.wrap_dataset_for_transforms_v2(coco, target_keys=["boxes", "labels", "image_id"])
    yield from epochs(args, DataLoader, wrapped, collate_fn=in_lists)


@script(engine="dali")
def voc_detection(args: Args, DataLoader: Any) -> Epochs:
    """VOCDetection, wrapped, with boxes and labels."""
    transforms = v2.Compose([v2.RandomHorizontalFlip(), v2.Resize((40, 40)), IMAGE, v2.SanitizeBoundingBoxes()])
    found = datasets.VOCDetection(args.data, transforms=transforms)
    dataset = datasets.wrap_dataset_for_transforms_v2(found, target_keys=("boxes", "labels"))
    yield from epochs(args, DataLoader, dataset, collate_fn=in_one)


@script(engine="torch")
def kitti(args: Args, DataLoader: Any) -> Epochs:
    """Kitti, wrapped, in batches of one size."""
    transforms = v2.Compose([v2.Resize((40, 64)), v2.RandomHorizontalFlip(), IMAGE, v2.ToPureTensor()])
    found = datasets.wrap_dataset_for_transforms_v2(datasets.Kitti(args.data, transforms=transforms))
    yield from epochs(args, DataLoader, found, collate_fn=in_one)


@script(engine="dali")
def coco_letterbox(args: Args, DataLoader: Any) -> Epochs:
    """COCO's boxes (XYWH) resized with the image into a square, then as yolo has them."""

    class Letterboxed(Detection):
        def __getitem__(self, i: int) -> Any:
            target = self.target(i)
            target["boxes"] = v2.functional.convert_bounding_box_format(target["boxes"], new_format="XYWH")
            image, target = self.transforms(self.image(i), target)
            boxes = v2.functional.convert_bounding_box_format(target["boxes"], new_format="CXCYWH")
            rows = torch.cat([torch.zeros(len(boxes), 1), target["labels"][:, None], boxes / 64], 1)
            return image, rows

    def collate_fn(batch: list[Any]) -> Any:
        images, rows = zip(*batch, strict=True)
        for i, found in enumerate(rows):
            found[:, 0] = i
        return torch.stack(images), torch.cat(rows)

    transforms = v2.Compose([v2.Resize(None, max_size=64), v2.CenterCrop(64), IMAGE])
    yield from epochs(args, DataLoader, Letterboxed(args.data, transforms), collate_fn=collate_fn)


@script(engine="torch")
def detr_batches(args: Args, DataLoader: Any) -> Epochs:
    """DETR with v2: padded to the largest image of the batch, with a mask of the padding."""

    def collate_fn(batch: list[Any]) -> Any:
        images, targets = zip(*batch, strict=True)
        height, width = (max(image.shape[axis] for image in images) for axis in (1, 2))
        padded = torch.zeros(len(batch), 3, height, width)
        outside = torch.ones(len(batch), height, width, dtype=torch.bool)
        for i, image in enumerate(images):
            padded[i, :, : image.shape[1], : image.shape[2]].copy_(image)
            outside[i, : image.shape[1], : image.shape[2]] = False
        return padded, outside, targets

    choice = v2.RandomChoice([v2.RandomShortestSize([40, 48]), v2.RandomShortestSize([56], max_size=80)])
    finish = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    transforms = v2.Compose([v2.RandomHorizontalFlip(), choice, *finish])
    yield from epochs(args, DataLoader, Detection(args.data, transforms), collate_fn=collate_fn)


@script(engine="dali")
def instance_masks(args: Args, DataLoader: Any) -> Epochs:
    """torchvision's finetuning tutorial: masks of instances from an image of ids, boxes from the masks."""

    class Instances(Files):
        def __getitem__(self, i: int) -> Any:
            ids = torch.from_numpy(np.array(self.mask(i)))
            masks = (ids == torch.unique(ids)[1:, None, None]).to(torch.uint8)
            edges = [(mask.any(0).nonzero(), mask.any(1).nonzero()) for mask in masks]
            boxes = [[int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1] for x, y in edges]
            target = {
                "masks": tv_tensors.Mask(masks),
                "labels": torch.ones(len(masks), dtype=torch.int64),
                "image_id": i,
            }
            size = {"canvas_size": tuple(ids.shape)}
            target["boxes"] = tv_tensors.BoundingBoxes(boxes, format="XYXY", **size)  # type: ignore[call-overload]
            target["area"] = torch.tensor([float(mask.sum()) for mask in masks])
            return self.transforms(self.image(i), target)

    steps = [v2.RandomHorizontalFlip(0.5), v2.RandomResize(48, 60), v2.Resize((48, 48))]
    yield from detection(args, DataLoader, *steps, kind=Instances, collate_fn=in_one)


# ---- keypoints, and several images


@script(engine="dali")
def face_landmarks(args: Args, DataLoader: Any) -> Epochs:
    """Landmarks as KeyPoints, turned and resized with the face, then scaled to 0..1."""

    class Faces(Dataset[Any]):
        def __init__(self, root: Any, transforms: Any):
            self.rows, self.root, self.transforms = table(root / "landmarks.csv")[:FEW], root, transforms

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, i: int) -> Any:
            image = Image.open(self.root / "images" / self.rows[i]["file"]).convert("RGB")
            points = [float(value) for key, value in self.rows[i].items() if key != "file"]
            size = {"canvas_size": (image.height, image.width)}
            where = tv_tensors.KeyPoints(torch.tensor(points).reshape(-1, 2), **size)
            image, where = self.transforms(image, where)
            return image, where / 40, i

    transforms = v2.Compose([v2.RandomRotation(20), v2.Resize((40, 40)), v2.ColorJitter(0.3), IMAGE])
    yield from epochs(args, DataLoader, Faces(args.data, transforms))


@script(engine="dali")
def heatmaps(args: Args, DataLoader: Any) -> Epochs:
    """A pose estimator: heat maps are drawn around the keypoints that the transform moved."""

    class Poses(Detection):
        def __getitem__(self, i: int) -> Any:
            found = self.target(i)["boxes"][:1]
            points = tv_tensors.KeyPoints(found[:, :2], canvas_size=self.target(i)["boxes"].canvas_size)
            image, points = self.transforms(self.image(i), points)
            axis = torch.arange(32.0)
            x, y = points[0]
            return image, torch.exp(-((axis - x) ** 2 + (axis[:, None] - y) ** 2) / 18), i

    transforms = v2.Compose([v2.Resize((32, 32)), v2.RandomHorizontalFlip(), IMAGE, v2.ClampKeyPoints()])
    yield from epochs(args, DataLoader, Poses(args.data, transforms))


@script(engine="dali")
def celeba_boxes(args: Args, DataLoader: Any) -> Epochs:
    """CelebA, wrapped: identity and box of each face."""
    faces = datasets.CelebA(
        args.data, split="train", target_type=["identity", "bbox"],
        transform=v2.Compose([v2.RandomHorizontalFlip(), v2.Resize((40, 40)), IMAGE]),
    )  # fmt: skip
    yield from epochs(args, DataLoader, datasets.wrap_dataset_for_transforms_v2(faces))


class Halves(Dataset[Any]):
    """Two pictures side by side in one file."""

    def __init__(self, root: Any, transforms: Any):
        self.paths, self.transforms = sorted((root / "pairs" / "AB").iterdir()), transforms

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Any:
        both = Image.open(self.paths[i]).convert("RGB")
        width, height = both.size
        a, b = both.crop((0, 0, width // 2, height)), both.crop((width // 2, 0, width, height))
        a, b = self.transforms(a, b)
        return {"A": a, "B": b, "path": self.paths[i].name}


@script(engine="torch")
def image_translation(args: Args, DataLoader: Any) -> Epochs:
    """pix2pix with v2: both halves resized, cropped and flipped alike."""
    steps = [v2.Resize(36), v2.RandomCrop(32), v2.RandomHorizontalFlip(), IMAGE, v2.Normalize([0.5], [0.5])]
    yield from epochs(args, DataLoader, Halves(args.data, v2.Compose(steps)))


@script(engine="dali")
def change_detection(args: Args, DataLoader: Any) -> Epochs:
    """Two dates of one place, and a mask of what changed between them."""

    class Dates(Files):
        def __getitem__(self, i: int) -> Any:
            before = self.image(i)
            after = before.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            before, after, mask = self.transforms(before, after, tv_tensors.Mask(self.mask(i)))
            return before, after, mask, i

    transforms = v2.Compose([v2.RandomCrop(40), v2.RandomVerticalFlip(), *FINISH])
    yield from epochs(args, DataLoader, Dates(args.data, transforms))


@script(engine="dali")
def joint_functions(args: Args, DataLoader: Any) -> Epochs:
    """The classic: one draw, and functionals on image and mask."""

    class Joint(Files):
        def __getitem__(self, i: int) -> Any:
            image, mask = self.image(i), self.mask(i)
            if torch.rand(1) < 0.5:
                image, mask = v2.functional.hflip(image), v2.functional.hflip(mask)
            window = v2.RandomCrop.get_params(image, (32, 32))
            image, mask = v2.functional.crop(image, *window), v2.functional.crop(mask, *window)
            return v2.functional.to_image(image), torch.as_tensor(np.array(mask)).long(), i

    yield from epochs(args, DataLoader, Joint(args.data, None))
