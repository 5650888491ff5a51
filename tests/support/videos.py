"""Training of small runs to record, and videos as a player decodes them."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import proxrl

TINY: dict[str, Any] = {"num_envs": 2, "rollout_steps": 8, "num_minibatches": 2, "epochs": 1, "total_steps": 16, "threads": 1}
SMALL: dict[str, Any] = {**TINY, "hidden_sizes": (8,)}
PIXELS: dict[str, Any] = {**TINY, "encoder": "small"}


class Decoded(NamedTuple):
    frames: NDArray[np.uint8]  # [frames, height, width, 3]
    fps: float
    codec: str
    pixels: str


def decode(path: Path) -> Decoded:
    import imageio_ffmpeg

    reader = imageio_ffmpeg.read_frames(str(path))
    properties = next(reader)
    width, height = properties["size"]
    frames = np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader])
    return Decoded(frames, properties["fps"], properties["codec"], properties["pix_fmt"])


def assert_moving_frames(frames: NDArray[np.uint8]) -> None:
    """Assert that no frame is blank, and that most frames differ from the one before."""
    assert all(frame.std() > 5 for frame in frames)
    assert (frames[1:] != frames[:-1]).any(axis=(1, 2, 3)).mean() > 0.5


def train(env: Any, folder: Path, **settings: Any) -> Path:
    return proxrl.train(env, runs_dir=folder, quiet=True, tensorboard=False, **settings).path
