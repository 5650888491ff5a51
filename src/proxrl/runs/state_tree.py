"""Nested states, such as those of callbacks, as JSON and tensors, which is what a checkpoint can hold."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

# The key of a dict that stands for an array or a tensor; its value says which of them, and `name` is that of the tensor.
MARK = "stored_as_tensor"
ALLOWED = "numbers, text, None, arrays, tensors, and lists or dicts of these"


def pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a copy of a state as JSON can store it, and add its arrays and tensors to `tensors`, under names below `name`.

    Raises a TypeError for what can't be restored. Tuples are restored as lists, and NumPy's numbers as Python's.
    """
    if isinstance(value, Tensor | np.ndarray):
        try:
            # A copy, because torch can't use arrays with negative strides.
            tensor = value.detach().cpu().clone() if isinstance(value, Tensor) else torch.from_numpy(value.copy())
        except TypeError:
            tensor = None
        if tensor is None or tensor.is_complex():
            raise TypeError(f"{name} is an array of {value.dtype}, which can't be saved")
        unique = f"{name}.{len(tensors)}" if name in tensors else name  # keys may contain dots
        tensors[unique] = tensor
        return {MARK: "torch" if isinstance(value, Tensor) else "numpy", "name": unique}
    if isinstance(value, dict):
        wrong = [key for key in value if not isinstance(key, str) or key == MARK]
        if wrong:
            raise TypeError(f"{name} has the key {wrong[0]!r}, but the keys of a saved dict must be text")
        return {key: pack(item, f"{name}.{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [pack(item, f"{name}.{index}", tensors) for index, item in enumerate(value)]
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name} is a {type(value).__name__}, which can't be saved; a state may hold {ALLOWED}")


def unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return what `pack` packed."""
    if isinstance(value, dict) and MARK in value:
        tensor = tensors[value["name"]].clone()
        return tensor if value[MARK] == "torch" else tensor.numpy()
    if isinstance(value, dict):
        return {key: unpack(item, tensors) for key, item in value.items()}
    return [unpack(item, tensors) for item in value] if isinstance(value, list) else value
