"""One seed fixes everything, and no two consumers share a stream.

Every stream is addressed, not advanced: (seed, purpose, global environment index, iteration or episode). So nothing about random
numbers has to be saved to resume a run, results do not depend on how environments are spread over ranks, and seeds 0 and 1
share no environment seed, which `seed + index` would give them.
"""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream is for; part of its address, so the order is fixed forever."""

    WEIGHTS = 0
    EPISODE = 1
    ROLLOUT = 2
    EVALUATION = 3
    TRIAL = 4


def seed_sequence(seed: int, purpose: Purpose, *address: int) -> np.random.SeedSequence:
    """The node of the seed tree at this address."""
    return np.random.SeedSequence(seed, spawn_key=(int(purpose), *address))


def integer_seed(seed: int, purpose: Purpose, *address: int) -> int:
    """A seed for a part that only takes an int (torch, an environment); below 2**31 because C++ pools take 32 signed bits."""
    return int(seed_sequence(seed, purpose, *address).generate_state(1)[0]) >> 1


def generator(seed: int, purpose: Purpose, *address: int) -> np.random.Generator:
    """A numpy generator for this address."""
    return np.random.default_rng(seed_sequence(seed, purpose, *address))
