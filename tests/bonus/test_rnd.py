"""Random network distillation (trap 20): what the reward is, what learns, and a value stream that episodes do not cut."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from curious import SCRIPTS, curious_config
from harness import NextStepEnvs, assemble, collect, run_ranks, scripted, train
from proxrl import ppo
from proxrl.bonus.rnd import Rnd
from proxrl.build import Parts
from proxrl.common import chunks
from proxrl.config import Config
from proxrl.config.schedule import parse_schedule
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.types import Batch, Rollout


def rnd_config(*arguments: str, **changes: Any) -> Config:
    return curious_config(**{"bonus": ("rnd", *arguments), **changes})


def rnd_parts(config: Config, pool: Any = InProcessEnvs) -> tuple[Parts, Rnd]:
    parts = assemble(config, pool(scripted(SCRIPTS)))
    rng = np.random.default_rng(0)
    parts.parameters.values += torch.from_numpy(rng.normal(0, 0.3, parts.parameters.values.shape).astype(np.float32))
    (learner,) = parts.learners
    assert isinstance(learner, Rnd)
    return parts, learner


# --- the reward ---------------------------------------------------------------------------------------------------------------


class ByHand:
    """The reward of all rollouts so far, step by step and without arrays over environments."""

    def __init__(self, learner: Rnd, gamma: float) -> None:
        self.learner, self.gamma = learner, gamma
        self.seen: list[Any] = []
        self.returns: list[float] = []
        self.running = [0.0] * 4

    def reward(self, rollout: Rollout) -> NDArray[np.float64]:
        self.seen += list(rollout.obs[:-1][rollout.valid])
        mean, std = np.mean(self.seen, axis=0), np.std(self.seen, axis=0)
        errors = np.zeros(rollout.valid.shape)
        for t, n in np.argwhere(rollout.valid):
            successor = rollout.obs[t, n] + [0, 0, 1]  # one step later in the same episode, even if that has ended there
            inputs = torch.tensor(np.clip((successor - mean) / np.sqrt(std**2 + 1e-8), -5, 5), dtype=torch.float32)[None]
            with torch.no_grad():
                difference = self.learner.predictor(inputs) - self.learner.target(inputs)
            errors[t, n] = float((difference**2).mean())
            self.running[n] = self.gamma * self.running[n] + errors[t, n]
            self.returns.append(self.running[n])
        return errors / np.std(self.returns)


@pytest.mark.parametrize("pool", [InProcessEnvs, NextStepEnvs])
def test_rewards_are_errors_on_whitened_successors_over_the_deviation_of_their_running_return(pool: Any) -> None:
    parts, learner = rnd_parts(rnd_config(), pool)
    by_hand = ByHand(learner, gamma=0.8)
    parts.collector.reset(1, None)
    for iteration, budget in enumerate((10**9, 10**9, 25)):  # the last rollout ends in the middle of a step
        rollout = parts.collector.collect(ppo.random_streams(parts, iteration), budget)
        rollout.reward[~rollout.valid] = 1e9
        reward = learner.reward(rollout, parts.config.at(0))
        assert np.allclose(reward, by_hand.reward(rollout), rtol=1e-3, atol=1e-5)
        assert learner.metrics()["bonus/rnd_reward"] == pytest.approx(reward[rollout.valid].mean(), rel=1e-5)
    assert np.allclose(learner.running_return, by_hand.running, rtol=1e-3)
    assert len(by_hand.returns) == int(learner.returns.count)


def test_inputs_are_clipped_to_five_standard_deviations() -> None:
    parts, learner = rnd_parts(rnd_config())
    learner.reward(collect(parts), parts.config.at(0))
    far = learner.preprocess(torch.tensor([[1e6, -1e6, 0.0]]))
    assert far[0, :2].tolist() == [5.0, -5.0]


# --- what learns --------------------------------------------------------------------------------------------------------------


def test_the_target_is_saved_and_never_trained() -> None:
    parts, learner = rnd_parts(rnd_config())
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    train(parts, 3)
    changed = {name.split(".")[0] for name, tensor in learner.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"predictor", "preprocess", "returns", "running_return", "iteration"}
    assert not any(parameter.requires_grad for parameter in learner.target.parameters())
    assert any(name.startswith("target.") for name in before)


class Corridor(gymnasium.Env):
    """The agent never leaves the first of five places, which it observes."""

    observation_space, action_space = spaces.Discrete(5), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        return 0, 0.0, False, False, {}


def test_what_was_often_seen_earns_little_and_what_is_new_much() -> None:
    config = rnd_config(num_envs=2, rollout_steps=16, total_steps=32 * 30, anneal_learning_rate=False)
    parts = assemble(config, InProcessEnvs([Corridor, Corridor]))
    (learner,) = parts.learners
    assert isinstance(learner, Rnd)

    def errors() -> list[float]:
        with torch.no_grad():
            places = learner.preprocess(torch.arange(5))
            return ((learner.predictor(places) - learner.target(places)) ** 2).mean(1).tolist()

    start, session, end = errors(), train(parts), errors()
    assert end[0] < 0.05 * start[0]
    assert min(end[1:]) > 5 * end[0]
    rewards = [metrics["bonus/rnd_reward"] for metrics in session.metrics]
    assert rewards[-1] < 0.1 * rewards[0]
    assert session.metrics[-1]["losses/rnd_predictor"] < 0.1 * session.metrics[0]["losses/rnd_predictor"]


def rows_batch(parts: Parts, rollout: Rollout) -> Batch:
    return next(parts.minibatches.draw(ppo.advantage(parts, rollout, parts.config.at(0)), ppo.random_streams(parts, 0), 1))


@pytest.mark.parametrize("fraction", [0.4, 1])
def test_the_chosen_fraction_of_rows_trains_the_predictor(fraction: float) -> None:
    parts, learner = rnd_parts(rnd_config(f"update_fraction={fraction}", rollout_steps=100, num_minibatches=1), NextStepEnvs)
    rollout = collect(parts)
    batch = rows_batch(parts, rollout)
    share = learner.chosen.mean()
    assert share == (1 if fraction == 1 else pytest.approx(fraction, abs=0.08))
    loss = learner.loss(batch, None)["rnd_predictor"]
    with torch.no_grad():
        obs = learner.preprocess(learner.transitions.after(np.arange(400)))
        errors = ((learner.predictor(obs) - learner.target(obs)) ** 2).mean(1).numpy()
    counted = learner.chosen & rollout.valid.ravel()
    assert loss.item() == pytest.approx(errors[counted].sum() / fraction / rollout.steps, rel=1e-4)
    assert not np.array_equal(learner.choose_rows(100), learner.chosen) or fraction == 1  # other rows in the next iteration
    learner.chosen[:] = False
    assert learner.loss(batch, None)["rnd_predictor"].item() == 0


def test_the_chosen_rows_do_not_depend_on_how_environments_are_spread_over_ranks() -> None:
    config = rnd_config()

    def choose(world: Any) -> NDArray[np.bool_]:
        first, count = world.rank * 4 // world.size, 4 // world.size
        pool = InProcessEnvs(scripted(SCRIPTS[first : first + count], first=first), first)
        (learner,) = assemble(config, pool, world, first).learners
        assert isinstance(learner, Rnd)
        return learner.choose_rows(12).reshape(12, count)

    (whole,), halves = run_ranks(1, choose), run_ranks(2, choose)
    assert np.array_equal(whole, np.concatenate(halves, axis=1))


# --- its value stream ---------------------------------------------------------------------------------------------------------


def test_the_stream_has_its_own_discount_coefficient_and_rule_of_endings() -> None:
    config = rnd_config(rnd_coef=parse_schedule("linear:1:0"), gae_lambda=0.7)
    _, learner = rnd_parts(config)
    stream = learner.stream(config.at(72))
    assert (stream.gamma, stream.gae_lambda, stream.coef, stream.episodic) == (0.8, 0.7, 0.5, False)
    parts, learner = rnd_parts(rnd_config("episodic=true", "gae_lambda=0.5"))
    stream = learner.stream(parts.config.at(0))
    assert (stream.gae_lambda, stream.episodic) == (0.5, True)
    assert learner.column == 1
    assert parts.policy.value_streams == 2


def brute_force(rollout: Rollout, reward: Any, value: Any, gamma: float, decay: float) -> NDArray[np.float64]:
    """Return advantages [T, N] of a stream that joins the episodes of an environment to one."""
    result = np.zeros(reward.shape)
    for n in range(reward.shape[1]):
        steps = np.flatnonzero(rollout.valid[:, n])
        past = rollout.last[:-1, n].any()  # the row after it is past the step budget
        values = [value[t, n] for t in steps] + [value[steps[-1] + 1 if past else len(reward), n]]
        deltas = [reward[t, n] + gamma * values[k + 1] - values[k] for k, t in enumerate(steps)]
        for k, t in enumerate(steps):
            result[t, n] = sum((gamma * decay) ** j * delta for j, delta in enumerate(deltas[k:]))
    return result


@pytest.mark.parametrize("budget", [10**9, 41])
@pytest.mark.parametrize("pool", [InProcessEnvs, NextStepEnvs])
def test_advantages_of_the_stream_pass_over_the_ends_of_episodes(pool: Any, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, learner = rnd_parts(rnd_config(rnd_coef=0.25), pool)
    rollout = collect(parts, budget=budget)
    assert (rollout.terminated & rollout.valid).any()
    assert (rollout.truncated & rollout.valid).any()
    reward = np.random.default_rng(1).normal(size=rollout.valid.shape).astype(np.float32)
    monkeypatch.setattr(learner, "reward", lambda *_: reward)
    batch = ppo.advantage(parts, rollout, parts.config.at(0))
    value = parts.compute.evaluate(rollout).value
    shape, valid = rollout.valid.shape, rollout.valid
    own = np.asarray(batch.target - batch.value)
    expected = brute_force(rollout, reward, np.asarray(value)[..., 1], 0.8, 0.95)
    assert np.allclose(own[:, 1].reshape(shape)[valid], expected[valid], atol=1e-4)
    assert np.allclose(np.asarray(batch.advantage), own[:, 0] + 0.25 * own[:, 1], atol=1e-5)


def test_an_episodic_stream_is_cut_as_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, learner = rnd_parts(rnd_config("episodic=true", rnd_gamma=0.9))
    rollout = collect(parts)
    monkeypatch.setattr(learner, "reward", lambda *_: rollout.reward)
    parts.policy.value.weight.data[1] = parts.policy.value.weight.data[0]  # type: ignore[union-attr, operator, index]
    parts.policy.value.bias.data[1] = parts.policy.value.bias.data[0]  # type: ignore[union-attr, operator, index]
    batch = ppo.advantage(parts, rollout, parts.config.at(0))
    assert np.allclose(np.asarray(batch.target)[:, 0], np.asarray(batch.target)[:, 1], atol=1e-5)


# --- images -------------------------------------------------------------------------------------------------------------------


class Dot(gymnasium.Env):
    """A bright pixel moves over a stack of four small frames."""

    observation_space, action_space = spaces.Box(0, 255, (4, 12, 12), np.uint8), spaces.Discrete(2)

    def observe(self) -> NDArray[np.uint8]:
        frames = np.zeros((4, 12, 12), np.uint8)
        for k in range(4):
            frames[k, 5, max(0, self.time - 3 + k)] = 255
        return frames

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.time = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return self.observe(), 0.0, self.time == 6, False, {}


def test_stacks_of_frames_are_learned_from_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    config = rnd_config(num_envs=2, rollout_steps=8, total_steps=16, bonus=("icm", "rnd"))

    def metrics() -> dict[str, float]:
        parts = assemble(config, InProcessEnvs([Dot, Dot], frame_stack=4))
        session = train(parts)
        curious = parts.learners[1]
        assert isinstance(curious, Rnd)
        assert curious.preprocess.output_space.shape == (1, 12, 12)  # the newest frame
        return session.metrics[0]

    whole = metrics()
    monkeypatch.setattr(chunks, "CHUNK_SIZE", 3 * 4 * 144)
    chunked = metrics()
    names = [name for name in whole if "icm" in name or "rnd" in name]
    assert len(names) == 5
    assert [chunked[name] for name in names] == pytest.approx([whole[name] for name in names], rel=1e-3)
