"""Expected failures: what gpupipe does not do yet, script by script and check by check, with the cause.

The tests are strict: what is done makes its line here fail, and the line goes. What does not run has no other checks.
"""

from __future__ import annotations

__all__ = ["KNOWN"]

ARRANGERS = "a class that only arranges transforms (views, presets) is refused"
BY_HAND = "a transform written by hand with Pillow, numpy or torch is refused"
FUNCTIONS = "a function that changes size, channels or the number of images is refused, and a lambda leaves DALI"
LIBRARIES = "transforms of albumentations and kornia are unknown"
TORCHVISION = "this dataset class of torchvision is unknown"
OWN = "an own Dataset that opens images with Pillow is unknown"
SUBCLASSES = "a subclass with its own way to open or return a sample is refused"
TARGETS = "a target that is not one integer is refused"
MIXING = "a collate function that mixes or stacks a batch is refused"
DATASETS = "engine='auto' refuses this kind of dataset instead of leaving it to torch's loader"
COLLATE = "engine='auto' refuses a collate function instead of leaving it to torch's loader"
BATCHES = "engine='auto' refuses own batch samplers and batch_size=None instead of leaving them to torch's loader"
ARGUMENTS = (
    "engine='auto' refuses worker_init_fn, contexts, time limits and in_order instead of leaving them to torch's loader"
)
NUMPY_INTEGERS = "num_workers must be a Python integer"
ENDLESS = "a sampler without a length is read to its end before the first batch"
ATTRIBUTES = "attributes that torch's loader has are missing, or can be set after the loader was made"
PICKLE = "a loader cannot be pickled"
SUBCLASSED = "a subclass of the loader that replaces its batch sampler does not work"
SEEDS = "every loader of a process has the same seed, so what is made anew repeats its draws"
DATASET_CHANGES = "changes of the dataset after the loader was made are ignored"
SAMPLER_CHANGES = "changes of the sampler after the loader was made are ignored"
ITERATORS = "a newer iterator ends the older one"
RANKS = "a DistributedSampler's own indices are not taken"

KNOWN: dict[str, dict[str, str]] = {
    "barlow_twins": {"runs": ARRANGERS},
    "byol": {"runs": ARRANGERS},
    "dino": {"runs": ARRANGERS},
    "moco_v1": {"runs": ARRANGERS},
    "moco_v2": {"runs": ARRANGERS},
    "moco_v3": {"runs": ARRANGERS},
    "simsiam": {"runs": ARRANGERS},
    "supcon": {"runs": ARRANGERS},
    "torchvision_presets": {"runs": ARRANGERS},
    "autoaugment_copy": {"runs": BY_HAND},
    "cifar100_cutout": {"runs": BY_HAND},
    "gan_training": {"draws": SEEDS},
    "jigsaw": {"runs": FUNCTIONS},
    "mnist_as_rgb": {"runs": FUNCTIONS},
    "ten_crop_testing": {"runs": FUNCTIONS},
    "albumentations_csv": {"runs": LIBRARIES},
    "kornia_in_dataset": {"runs": LIBRARIES},
    "aircraft": {"runs": TORCHVISION},
    "celeba_attributes": {"runs": TORCHVISION},
    "country_probe": {"runs": TORCHVISION},
    "eurosat": {"runs": TORCHVISION},
    "fake_data": {"runs": TORCHVISION},
    "food101": {"runs": TORCHVISION},
    "imagenet_lighting": {"runs": TORCHVISION},
    "imagenette_fastai": {"runs": TORCHVISION},
    "inaturalist": {"runs": TORCHVISION},
    "oxford_pets": {"runs": TORCHVISION},
    "simclr_stl10": {"runs": TORCHVISION},
    "textures_probe": {"runs": TORCHVISION},
    "traffic_signs": {"runs": TORCHVISION},
    "age_regression": {"runs": OWN},
    "clip_captions": {"runs": OWN},
    "deepcluster": {"runs": OWN},
    "dict_samples": {"runs": OWN},
    "dogs_vs_cats": {"runs": OWN},
    "gray_medical": {"runs": OWN},
    "kaggle_folds": {"runs": OWN},
    "kaggle_submission": {"runs": OWN},
    "lmdb_like": {"runs": OWN},
    "long_tailed": {"runs": OWN},
    "planet_multilabel": {"runs": OWN},
    "reid_triplets": {"runs": OWN},
    "swin": {"runs": OWN},
    "transformed_subset": {"runs": OWN},
    "dino_knn": {"runs": SUBCLASSES},
    "fixmatch": {"runs": SUBCLASSES},
    "folder_with_paths": {"runs": SUBCLASSES},
    "noisy_labels": {"runs": SUBCLASSES},
    "own_image_loader": {"runs": SUBCLASSES},
    "solo_learn": {"runs": SUBCLASSES},
    "swav": {"runs": SUBCLASSES},
    "fashion_one_hot": {"runs": TARGETS},
    "timm_mixup_collate": {"runs": MIXING},
    "timm_train": {"runs": MIXING},
    "torchvision_mixup_collate": {"runs": MIXING},
    "augmix": {"runs": DATASETS},
    "chained_streams": {"runs": DATASETS},
    "concatenated": {"runs": DATASETS},
    "ibot": {"runs": DATASETS},
    "landmarks": {"runs": DATASETS},
    "mean_teacher": {"runs": DATASETS},
    "mixmatch": {"runs": DATASETS},
    "namedtuple_samples": {"runs": DATASETS},
    "numpy_style": {"runs": DATASETS},
    "pix2pix": {"runs": DATASETS},
    "siamese": {"runs": DATASETS},
    "stacked": {"runs": DATASETS},
    "temporal_segments": {"runs": DATASETS},
    "tensor_dataset": {"runs": DATASETS},
    "unet": {"runs": DATASETS},
    "v2_segmentation": {"runs": DATASETS},
    "webdataset_shards": {"runs": DATASETS},
    "batch_objects": {"runs": COLLATE},
    "broken_files": {"runs": COLLATE},
    "detection": {"runs": COLLATE},
    "dinov2_masks": {"runs": COLLATE},
    "huggingface_collate": {"runs": COLLATE},
    "rotation_prediction": {"runs": COLLATE},
    "simmim": {"runs": COLLATE},
    "torchvision_segmentation": {"runs": COLLATE},
    "yolo": {"runs": COLLATE},
    "few_shot": {"runs": BATCHES},
    "memmap_batches": {"runs": BATCHES},
    "fork_context": {"runs": ARGUMENTS},
    "out_of_order": {"runs": ARGUMENTS},
    "reproducible_workers": {"runs": ARGUMENTS},
    "kaggle_csv": {"runs": NUMPY_INTEGERS},
    "dinov2_endless": {"runs": ENDLESS},
    "another_dataset": {"runs": ATTRIBUTES},
    "batch_size_finder": {"runs": ATTRIBUTES},
    "pickled_and_copied": {"runs": PICKLE},
    "timm_multi_epochs": {"runs": SUBCLASSED},
    "active_learning": {"structure": DATASET_CHANGES, "draws": SEEDS},
    "augmentation_off": {"pixels": DATASET_CHANGES, "draws": SEEDS},
    "cifar10_resnet": {"draws": SEEDS},
    "cross_validation": {"draws": SEEDS},
    "curriculum_length": {"structure": SAMPLER_CHANGES, "draws": SEEDS},
    "cycle_batches": {"draws": SEEDS},
    "deit": {"draws": SEEDS},
    "deit_three_augment": {"draws": SEEDS, "distribution": DATASET_CHANGES},
    "dict_of_loaders": {"draws": SEEDS},
    "early_break": {"draws": SEEDS},
    "endless_generator": {"draws": SEEDS},
    "growing_subset_sampler": {"structure": SAMPLER_CHANGES, "draws": SEEDS},
    "hard_mining": {"structure": SAMPLER_CHANGES, "order": SAMPLER_CHANGES, "draws": SEEDS},
    "ignite_engine": {"draws": SEEDS},
    "imagenet_two_ranks": {"order": RANKS, "pixels": RANKS, "draws": SEEDS},
    "limited_epochs": {"draws": SEEDS},
    "loader_per_epoch": {"draws": SEEDS},
    "mae": {"order": RANKS, "draws": SEEDS},
    "mnist_example": {"draws": SEEDS},
    "peek_while_training": {"structure": ITERATORS, "draws": SEEDS},
    "progressive_resizing": {"structure": DATASET_CHANGES, "draws": SEEDS},
    "pseudo_labels": {"structure": DATASET_CHANGES, "draws": SEEDS},
    "pytorch_imagenet": {"draws": SEEDS},
    "random_choices": {"draws": SEEDS},
    "resumable": {"structure": SAMPLER_CHANGES, "draws": SEEDS},
    "same_epoch_again": {"order": RANKS, "draws": SEEDS},
    "seeded_generator": {"draws": SEEDS},
    "some_classes": {"draws": SEEDS},
    "torch_batch_sampler": {"draws": SEEDS},
    "torchvision_v2": {"draws": SEEDS},
    "transfer_learning_tutorial": {"draws": SEEDS},
    "two_folders_one_split": {"draws": SEEDS},
    "weighted_classes": {"draws": SEEDS},
    "with_replacement": {"draws": SEEDS},
    "zip_two_loaders": {"draws": SEEDS},
    "corruption_test": {"pixels": DATASET_CHANGES, "draws": DATASET_CHANGES},
    "fewer_samples": {"structure": DATASET_CHANGES, "draws": DATASET_CHANGES},
    "nested_loops": {"structure": ITERATORS},
    "zip_one_loader": {"structure": ITERATORS},
    "validation_ranks": {"order": RANKS, "pixels": RANKS},
}
"""By script and check."""
