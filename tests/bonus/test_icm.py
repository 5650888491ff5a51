"""The intrinsic curiosity module (trap 21): its reward, what trains which model, and that features do not collapse."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from threadpoolctl import threadpool_limits
from torch.nn.functional import layer_norm

from curious import SCRIPTS, curious_config
from harness import LostEnvs, NextStepEnvs, assemble, collect, make_rollout, run_ranks, scripted, train
from proxrl import ppo
from proxrl.bonus.icm import Icm
from proxrl.build import Parts
from proxrl.config import Config
from proxrl.envs.gymnasium import InProcessEnvs

BOX = spaces.Box(-0.5, 0.5, (2,), np.float32)


def icm_config(**changes: Any) -> Config:
    return curious_config(**{"bonus": ("icm",), "icm_coef": 0.5, **changes})


def icm_parts(config: Config, pool: Any = InProcessEnvs, action_space: Any = None) -> tuple[Parts, Icm]:
    parts = assemble(config, pool(scripted(SCRIPTS, action_space)))
    learner = parts.learners[0]
    assert isinstance(learner, Icm)
    return parts, learner


# --- the reward ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action_space", [None, BOX])
@pytest.mark.parametrize("pool", [InProcessEnvs, NextStepEnvs])
def test_rewards_are_the_errors_of_the_forward_model_about_true_successors(pool: Any, action_space: Any) -> None:
    parts, learner = icm_parts(icm_config(), pool, action_space)
    rollout = collect(parts, budget=41)
    reward = learner.reward(rollout, parts.config.at(0))
    seen = rollout.obs[:-1][rollout.valid]
    mean, std = seen.mean(0), seen.std(0)

    def features(obs: Any) -> torch.Tensor:
        whitened = torch.tensor(np.clip((obs - mean) / std, -5, 5), dtype=torch.float32)
        encoded = learner.encoder(whitened[None])
        return layer_norm(encoded, encoded.shape[1:])

    for t, n in np.argwhere(rollout.valid):
        action = rollout.action[t, n]
        code = np.eye(2)[action] if action_space is None else np.clip(action, -0.5, 0.5) / 0.5
        before, after = features(rollout.obs[t, n]), features(rollout.obs[t, n] + [0, 0, 1])  # also where an episode ends
        predicted = learner.forward_model(torch.cat([before, torch.tensor(code, dtype=torch.float32)[None]], 1))
        assert reward[t, n] == pytest.approx(0.5 * 0.5 * ((predicted - after) ** 2).mean().item(), rel=1e-3, abs=1e-5)
    assert not reward[~rollout.valid].any()
    assert learner.metrics()["bonus/icm_reward"] == pytest.approx(2 * reward[rollout.valid].mean(), rel=1e-4)


def test_rewards_are_added_to_those_of_the_environment() -> None:
    parts, learner = icm_parts(icm_config())
    rollout = collect(parts)
    both = ppo.rewards(parts, rollout, parts.config.at(0), 1)
    own = learner.reward(rollout, parts.config.at(0))
    assert np.allclose(both[..., 0], rollout.reward + own, atol=1e-2)  # the statistics have seen the rollout twice
    assert learner.column == 0


def test_transitions_whose_end_is_unknown_earn_and_teach_nothing() -> None:
    parts, learner = icm_parts(icm_config(num_minibatches=1), LostEnvs)
    rollout = collect(parts)
    ended = rollout.terminated | rollout.truncated
    batch = ppo.advantage(parts, rollout, parts.config.at(0))
    reward = learner.reward(rollout, parts.config.at(0))
    assert not reward[ended].any()
    assert (reward[~ended] > 0).all()
    forward, _ = learner.errors(np.arange(48))
    expected = forward.detach().numpy()[~ended.ravel()].sum() / 48
    (minibatch,) = parts.minibatches.draw(batch, ppo.random_streams(parts, 0), 1)
    assert learner.loss(minibatch, None)["icm_forward"].item() == pytest.approx(expected, rel=1e-4)


# --- what learns --------------------------------------------------------------------------------------------------------------


def test_the_inverse_loss_trains_the_features_and_the_forward_loss_does_not() -> None:
    parts, learner = icm_parts(icm_config(num_minibatches=1))
    rollout = collect(parts)
    batch = ppo.advantage(parts, rollout, parts.config.at(0))
    (minibatch,) = parts.minibatches.draw(batch, ppo.random_streams(parts, 0), 1)

    def trained_by(term: str) -> set[str]:
        parameters = dict(learner.named_parameters())
        gradients = torch.autograd.grad(learner.loss(minibatch, None)[term], parameters.values(), allow_unused=True)
        names = zip(parameters, gradients, strict=True)
        return {name.split(".")[0] for name, gradient in names if gradient is not None and gradient.any()}

    assert trained_by("icm_inverse") == {"encoder", "inverse"}
    assert trained_by("icm_forward") == {"forward_model"}


class Line(gymnasium.Env):
    """The agent moves on a line of 20 places, and also observes a number that is pure noise."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-np.inf, np.inf, (21,), np.float32)

    def observe(self) -> Any:
        return np.append(np.eye(20)[self.place], 3 * self.noise.normal()).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.noise, self.place = np.random.default_rng(seed), 10
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.place = (self.place + (1 if action else -1)) % 20
        return self.observe(), 0.0, False, False, {}


def test_the_inverse_model_finds_the_actions_and_features_do_not_collapse() -> None:
    config = icm_config(num_envs=8, rollout_steps=64, num_minibatches=1, hidden_sizes=(32,))
    parts = assemble(config, InProcessEnvs([Line] * 8))
    learner = parts.learners[0]
    assert isinstance(learner, Icm)
    rollout = collect(parts)  # the initial policy is nearly uniform
    batch = ppo.advantage(parts, rollout, config.at(0))
    (minibatch,) = parts.minibatches.draw(batch, ppo.random_streams(parts, 0), 1)
    optimizer = torch.optim.Adam(learner.parameters(), 0.01)
    losses = []
    with threadpool_limits(1):
        for _ in range(60):
            terms = learner.loss(minibatch, None)
            losses.append({name: term.item() for name, term in terms.items()})
            optimizer.zero_grad()
            sum(terms.values()).backward()  # type: ignore[union-attr, no-untyped-call]
            optimizer.step()
    assert losses[-1]["icm_inverse"] < 0.1 * losses[0]["icm_inverse"]
    assert losses[-1]["icm_forward"] < 0.5 * losses[0]["icm_forward"]
    places = np.concatenate([np.eye(20), np.zeros((20, 1))], 1).astype(np.float32)
    successors = np.roll(places, -1, axis=0)
    with torch.no_grad():
        before, after = (learner.features(torch.from_numpy(obs)) for obs in (places, successors))
        found = [learner.inverse(torch.cat(pair, 1)).argmax(1) for pair in ((before, after), (after, before))]
        noisy = learner.features(torch.from_numpy(places + np.append(np.zeros(20), 3.0).astype(np.float32)))
    assert (found[0] == 1).float().mean() > 0.95
    assert (found[1] == 0).float().mean() > 0.95
    spread = before.var(0).mean().item()
    assert spread > 0.2  # of features with variance 1
    assert (noisy - before).pow(2).mean().item() < 0.5 * spread  # noise moves features less than the place does


# --- ranks, computes, wrong arguments -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{}, {"memory": "gru", "memory_size": 4, "accumulate": 2}])
def test_two_ranks_learn_as_one(arguments: dict[str, Any]) -> None:
    config = icm_config(bonus=("icm", "rnd", "update_fraction=0.6"), **arguments)

    def run(world: Any) -> Any:
        first, count = world.rank * 4 // world.size, 4 // world.size
        pool = InProcessEnvs(scripted(SCRIPTS[first : first + count], first=first), first)
        parts = assemble(config, pool, world, first)
        session = train(parts, 3)
        states = [tensor.clone() for learner in parts.learners for tensor in learner.state_dict().values()]
        return parts.parameters.values.clone(), states, session.metrics

    (alone,), (first, second) = run_ranks(1, run), run_ranks(2, run)
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(one, other) for one, other in zip(first[1], second[1], strict=True))
    assert first[2] == second[2]
    assert torch.allclose(first[0], alone[0], atol=1e-3)
    for one, other in zip(first[1], alone[1], strict=True):
        assert torch.allclose(one.double(), other.double(), rtol=1e-3, atol=1e-3)
    for one, other in zip(first[2], alone[2], strict=True):
        for name in ("bonus/icm_reward", "bonus/rnd_reward", "losses/icm_inverse", "losses/rnd_predictor"):
            assert one[name] == pytest.approx(other[name], rel=1e-2)


def test_bonuses_learn_alike_beside_a_policy_in_numpy_and_in_torch() -> None:
    results = []
    for compute in ("numpy", "autograd"):
        parts, learner = icm_parts(icm_config(compute=compute, bonus=("icm", "rnd")))
        results.append((train(parts, 2).metrics, learner.state_dict()))
    (numpy_metrics, numpy_state), (torch_metrics, torch_state) = results
    for one, other in zip(numpy_metrics, torch_metrics, strict=True):
        assert one == pytest.approx(other, rel=1e-2, abs=1e-4)
    assert all(torch.allclose(tensor.double(), torch_state[name].double(), atol=1e-3) for name, tensor in numpy_state.items())


def test_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    weights = [
        icm_parts(icm_config(seed=seed, bonus=bonus))[1].encoder[1][0].weight  # type: ignore[index]
        for seed, bonus in ((1, ("icm",)), (1, ("icm", "rnd")), (2, ("icm",)))
    ]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_rollout_without_a_valid_step_changes_nothing() -> None:
    parts, _ = icm_parts(icm_config(bonus=("icm", "rnd")))
    obs = np.zeros((3, 4, 3), np.float32)
    nothing = np.zeros((2, 4), np.bool_)
    rollout = make_rollout(obs=obs, reward=np.ones((2, 4), np.float32), action=np.zeros((2, 4), np.int64), valid=nothing)
    for each in parts.learners:
        before = {name: tensor.clone() for name, tensor in each.state_dict().items() if name != "iteration"}
        assert not each.reward(rollout, parts.config.at(0)).any()
        assert all(torch.equal(tensor, each.state_dict()[name]) for name, tensor in before.items())
