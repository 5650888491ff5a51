"""A custom advantage estimator: returns of n steps instead of generalized advantage estimation.

python examples/own_advantage.py
proxrl train CartPole-v1 --advantage examples.own_advantage:n_step n=16
"""

import proxrl
from proxrl.types import Array


def n_step(
    reward: Array,  # [T, N]; all arrays are of numpy or torch, as the run computes
    value: Array,  # [T, N] of the observation acted on
    next_value: Array,  # [T, N] of its true successor, even if the environment has been reset
    terminated: Array,  # [T, N] 1 where nothing follows
    trace_ends: Array,  # [T, N] 1 where the next row is another episode's, or the rollout ends
    gamma: float,
    gae_lambda: float,  # noqa: ARG001  not used here
    valid: Array,  # [T, N] 0 for rows that do not count, such as the dummy steps of EnvPool
    n: int = 16,
) -> Array:
    """A_t = r_t + gamma * r_{t+1} + ... + gamma^n * V(s_{t+n}) - V(s_t), with fewer steps before the end of an episode."""
    advantage = 0 * reward
    later = [0 * reward[0]] * (n - 1)  # returns of 1, 2, ... n - 1 steps of the next row that counts
    for t in reversed(range(len(reward))):
        successor = (1 - terminated[t]) * next_value[t]
        follows = 1 - trace_ends[t]
        returns = [reward[t] + gamma * successor]
        returns += [reward[t] + gamma * (follows * shorter + (1 - follows) * successor) for shorter in later]
        advantage[t] = valid[t] * (returns[-1] - value[t])
        later = [valid[t] * one + (1 - valid[t]) * other for one, other in zip(returns[:-1], later, strict=True)]
    return advantage


if __name__ == "__main__":
    settings = {"total_steps": 20_480, "learning_rate": 1e-3, "threads": 1, "clobber": True}
    result = proxrl.train("CartPole-v1", advantage=(n_step, {"n": 16}), **settings)
    print(f"mean return of the last 100 episodes: {result.mean_return:.0f}")
