"""Random streams: one seed determines all of them, and no two consumers share one.

A stream is identified by its address (seed, purpose, global environment index, iteration or episode) instead of by how much was
drawn before. So no generator state has to be saved to resume a run, results do not depend on how environments are distributed
over ranks, and seeds 0 and 1 have no environment seed in common, as they would with `seed + index`.
"""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream is used for. The values are part of its address: changing them would change every run."""

    WEIGHTS = 0
    EPISODE = 1
    ROLLOUT = 2
    EVALUATION = 3
    TRIAL = 4
    BONUS = 5
    LEARNER = 6
    TURNS = 7


def seed_sequence(seed: int, purpose: Purpose, *address: int) -> np.random.SeedSequence:
    """Return the seed sequence at this address."""
    return np.random.SeedSequence(seed, spawn_key=(int(purpose), *address))


def integer_seed(seed: int, purpose: Purpose, *address: int) -> int:
    """Return a seed for torch or an environment, which take an int; below 2**31, since C++ pools take signed 32-bit numbers."""
    return int(seed_sequence(seed, purpose, *address).generate_state(1)[0]) >> 1


def generator(seed: int, purpose: Purpose, *address: int) -> np.random.Generator:
    """Return a NumPy generator for this address."""
    return np.random.default_rng(seed_sequence(seed, purpose, *address))


def rollout_address(stream: np.random.Generator) -> tuple[int, int]:
    """Return the seed and the iteration of an environment's ROLLOUT stream, which those of all environments have in common."""
    sequence = stream.bit_generator.seed_seq
    assert isinstance(sequence, np.random.SeedSequence)
    assert isinstance(sequence.entropy, int)
    return sequence.entropy, sequence.spawn_key[-1]
