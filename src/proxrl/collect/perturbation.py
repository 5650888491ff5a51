"""Robust Policy Optimization: in the update, the mean of the Gaussian is moved at random.

The policy then learns for all means in a neighborhood, which keeps its entropy up. Acting is unchanged. (Rahman and Xue, 2022.)
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Perturbation:
    """Draws what is added to the means: uniform in [-alpha, alpha], new for every row in every epoch. `means` are their
    positions among the inputs of the policy's head. Without alpha, or without a Gaussian, it draws nothing.
    """

    def __init__(self, alpha: float | None = None, means: Sequence[int] = (), inputs: int = 0) -> None:
        self.alpha, self.columns, self.width = alpha or 0.0, list(means) if alpha else [], inputs

    def draw(self, streams: Sequence[np.random.Generator], steps: int) -> tuple[NDArray[np.float32], ...]:
        """Return rows [steps * N, inputs] in the order of a batch, each environment's from its own stream; or nothing."""
        if not self.columns:
            return ()
        rows = np.zeros((steps, len(streams), self.width), np.float32)
        draws = [stream.uniform(-self.alpha, self.alpha, (steps, len(self.columns))) for stream in streams]
        rows[..., self.columns] = np.stack(draws, axis=1)
        return (rows.reshape(-1, self.width),)
