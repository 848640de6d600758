"""The reference engine, made of torch's DataLoader and Pillow."""

from .engine import Torch

__all__ = ["Torch"]
