"""Checkpoints: one safetensors file with tensors, and a JSON document in its header. Nothing is ever unpickled.

There is one file so that a single rename makes tensors and state appear together.
"""

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch

from proxrl.common.files import read_regular, replacing
from proxrl.errors import ProxRLError

FORMAT, VERSION = "proxrl-checkpoint", 1
HEADER_LENGTH_BYTES = 8  # a safetensors file starts with the length of its JSON header


class DamagedCheckpointError(ProxRLError):
    """The file is not a complete checkpoint, so another one must be used."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; use another checkpoint of that run")
        self.problem = problem  # for callers that can name the other checkpoint


def save(path: Path, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
    """Write a checkpoint completely or not at all. The state is stored as JSON, so tuples are loaded as lists."""
    # Copies, because safetensors rejects tensors that share memory, and parameters are views of one flat buffer.
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(_plain(state, "state"))
    header = {"format": FORMAT, "version": str(VERSION), "sha256": digest(copies, text), "state": text}
    data = safetensors.torch.save(copies, header)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise ProxRLError(
            f"can't write the checkpoint {path}: {error.strerror or error}; the last good checkpoint is unchanged"
        ) from error


def load(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read and verify a checkpoint; return its tensors, on the CPU, and its state."""
    try:
        data = read_regular(path, sys.maxsize)
    except FileNotFoundError:
        raise ProxRLError(f"there is no checkpoint at {path}; check the path, or train first") from None
    except OSError as error:
        raise ProxRLError(f"can't read the checkpoint {path}: {error.strerror or error}") from error
    header = _header(path, data)
    try:
        tensors = safetensors.torch.load(data)
    # Damage in the header may name a type that torch lacks or a shape that does not fit.
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError):
        raise _damaged(path) from None
    if header.get("sha256") != digest(tensors, header.get("state", "")):
        raise _damaged(path)
    try:
        state = json.loads(header["state"])
    except (KeyError, ValueError, RecursionError):
        raise _damaged(path) from None
    return tensors, state


def _damaged(path: Path) -> DamagedCheckpointError:
    return DamagedCheckpointError(f"the checkpoint {path} is damaged: its contents do not match its checksum")


def _header(path: Path, data: bytes) -> dict[str, str]:
    """Return the metadata, after checking that this is a complete checkpoint of a version that can be read."""
    start = data[:HEADER_LENGTH_BYTES]
    end = HEADER_LENGTH_BYTES + int.from_bytes(start, "little")
    if not data.startswith(b"{", HEADER_LENGTH_BYTES) and len(data) > HEADER_LENGTH_BYTES:
        if data.startswith(b"PK\x03\x04") or re.match(rb"\x80[\x02-\x05]", data):
            raise ProxRLError(f"{path} is a pickle, which can run code when loaded; ProxRL only loads its own safetensors files")
        raise DamagedCheckpointError(f"{path} is not a checkpoint, or its first bytes are damaged")
    if len(data) < end or len(data) <= HEADER_LENGTH_BYTES:
        raise DamagedCheckpointError(f"the checkpoint {path} is cut short ({len(data)} bytes)")
    try:
        entries = json.loads(data[HEADER_LENGTH_BYTES:end])
        metadata = {name: str(value) for name, value in entries.pop("__metadata__", {}).items()}
        length = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        cut_short = len(data) < end + length
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        raise _damaged(path) from None
    if metadata.get("format") != FORMAT:
        raise ProxRLError(f"{path} is a safetensors file, but not a ProxRL checkpoint; give one from a run's checkpoints folder")
    version = metadata.get("version", "")
    if version != str(VERSION):
        if not version.isdecimal():
            raise _damaged(path)
        raise ProxRLError(
            f"{path} has checkpoint format {version}, and this ProxRL reads {VERSION}; pip install --upgrade proxrl"
        )
    if cut_short:
        raise DamagedCheckpointError(f"the checkpoint {path} is cut short ({len(data)} of {end + length} bytes)")
    return metadata


def digest(tensors: dict[str, torch.Tensor], state: str = "") -> str:
    """Return a checksum of names, types, shapes and contents."""
    sha = hashlib.sha256(state.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        sha.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if tensor.numel():  # an empty tensor can't be viewed as bytes
            sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def _plain(value: Any, where: str) -> Any:
    """Return the value as JSON loads it, apart from tuples; raise an error for what JSON would silently change."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ProxRLError(f"{where} has the key {key!r}, but keys of the state of a checkpoint must be text")
        return {key: _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ProxRLError(f"{where} is a {type(value).__name__}, which the state of a checkpoint can't hold; store arrays as tensors")
