"""Random streams are identified by addresses: no two consumers share one, and the numbers never change."""

import numpy as np

from proxrl.common.seeding import Purpose, generator, integer_seed
from proxrl.envs.api import episode_seed


def test_seeds_0_and_1_share_no_episode_seed() -> None:
    first, second = ({episode_seed(seed, env, episode) for env in range(1000) for episode in range(3)} for seed in (0, 1))
    assert not first & second


def test_episodes_of_all_environments_have_different_seeds() -> None:
    seeds = [episode_seed(1, env, episode) for env in range(100) for episode in range(20)]
    assert len(set(seeds)) == len(seeds)


def test_integer_seeds_fit_into_32_signed_bits_and_use_them() -> None:
    seeds = [integer_seed(7, Purpose.EPISODE, env) for env in range(2000)]
    assert 0 <= min(seeds) < 2**25
    assert 2**31 - 2**25 < max(seeds) < 2**31


def test_streams_differ_by_every_part_of_the_address() -> None:
    draws = {
        generator(seed, purpose, env, iteration).random()
        for seed in (0, 1)
        for purpose in Purpose
        for env in range(5)
        for iteration in range(5)
    }
    assert len(draws) == 2 * len(Purpose) * 5 * 5


def test_a_stream_does_not_depend_on_what_was_drawn_elsewhere() -> None:
    before = generator(3, Purpose.ROLLOUT, 2, 5).random(4)
    np.random.seed(0)  # the global generator must have no effect
    generator(3, Purpose.ROLLOUT, 2, 4).random(100)
    assert np.array_equal(before, generator(3, Purpose.ROLLOUT, 2, 5).random(4))


def test_seeds_do_not_change_between_versions() -> None:
    # With other numbers, saved runs would resume with other episodes and other noise.
    assert [int(purpose) for purpose in (Purpose.WEIGHTS, Purpose.EPISODE, Purpose.ROLLOUT, Purpose.EVALUATION)] == [0, 1, 2, 3]
    assert integer_seed(1, Purpose.WEIGHTS) == 820705584
    assert episode_seed(1, 0, 0) == 1466754944
    assert episode_seed(1, 3, 7) == 1360717910
    assert integer_seed(2**63 - 1, Purpose.EVALUATION, 10**9) == 221002922
    assert np.allclose(
        generator(1, Purpose.ROLLOUT, 2, 5).random(3),
        [0.18041178180690276, 0.42678511406028985, 0.12863135467518771],
        rtol=0,
        atol=1e-12,
    )
