"""The reference engine, built on torch's DataLoader and Pillow."""

from .engine import Torch

__all__ = ["Torch"]
