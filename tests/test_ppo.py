"""The algorithm compared with independent definitions: brute force, numbers computed by hand, textbook formulas by autograd."""

import copy
import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from harness import NEVER, LostEnvs, NextStepEnvs, Scripted, assemble, collect, run_ranks, scripted, train
from proxrl import ppo
from proxrl.build import Parts
from proxrl.collect.minibatches import Minibatches
from proxrl.common.seeding import Purpose, generator
from proxrl.common.tree import tree_leaves
from proxrl.config import Coefficients, Config
from proxrl.engine.api import Outputs
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.errors import ProxRLError
from proxrl.types import Batch, Rollout
from proxrl.world.solo import Solo

COMPUTES = ("numpy", "autograd")
KL = ppo.Terms._fields.index("approx_kl")
BOX = spaces.Box(-0.5, 0.5, (2,), np.float32)
# Endings of both kinds, at different times in different environments, and an episode that outlasts any rollout.
SCRIPTS = (((3, "terminated"), (2, "truncated")), ((4, "truncated"), (1, "terminated"), (1, "truncated")), (NEVER,))


def small_config(**changes: Any) -> Config:
    settings = {"num_envs": 3, "rollout_steps": 12, "num_minibatches": 2, "epochs": 2, "hidden_sizes": (8,), "gamma": 0.9}
    return Config(**{**settings, "gae_lambda": 0.8, "total_steps": 72, "learning_rate": 0.01, **changes}).validate()


def perturb(parts: Parts, seed: int = 0) -> None:
    """Move weights away from their small initial values, and statistics away from (0, 1), so that mistakes show."""
    rng = np.random.default_rng(seed)
    parts.parameters.values += torch.from_numpy(rng.normal(0, 0.3, parts.parameters.values.shape).astype(np.float32))
    if parts.config.normalize_observations:
        moments = parts.policy.preprocess.moments
        moments.mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
        moments.variance.copy_(torch.tensor([4.0, 0.25, 9.0]))
        moments.count.fill_(100)
    parts.compute.freeze()


@torch.no_grad()
def value_of(parts: Parts, obs: Any) -> float:
    """Compute V(obs) independently: whitening by its formula, then the layers of the critic one by one."""
    policy = parts.policy
    row = torch.tensor(obs, dtype=torch.float64)
    if parts.config.normalize_observations:
        moments = policy.preprocess.moments
        row = ((row - moments.mean.double()) / (moments.variance.double() + 1e-8).sqrt()).clamp(-10, 10)
    for layer in policy.critic.layers:
        row = torch.tanh(layer.weight.double() @ row + layer.bias.double())
    return float(policy.value.weight.double() @ row + policy.value.bias.double())


# --- gae ----------------------------------------------------------------------------------------------------------------------


def brute_force_gae(
    reward: Any, value: Any, next_value: Any, terminated: Any, ended: Any, gamma: float, lam: float
) -> NDArray[np.float64]:
    """The definition, term by term: the sum of (gamma * lambda)^k * delta_{t + k} up to the end of the episode or rollout."""
    steps, num_envs = reward.shape
    result = np.zeros((steps, num_envs))
    for n in range(num_envs):
        for t in range(steps):
            for k in range(steps - t):
                i = t + k
                bootstrap = 0.0 if terminated[i, n] else gamma * next_value[i, n]
                result[t, n] += (gamma * lam) ** k * (reward[i, n] + bootstrap - value[i, n])
                if ended[i, n]:
                    break
    return result


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("autoreset", ["same-step", "next-step"])
def test_gae_equals_the_brute_force_definition(gamma: float, lam: float, autoreset: str) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        steps, num_envs = int(rng.integers(1, 15)), int(rng.integers(1, 5))
        terminated, truncated = rng.choice([False, True], (2, steps, num_envs), p=[0.75, 0.25])
        truncated &= ~terminated
        valid = np.ones((steps, num_envs), bool)
        if autoreset == "next-step":
            for t in range(1, steps):
                valid[t] = ~(terminated | truncated)[t - 1]
                terminated[t] &= valid[t]
                truncated[t] &= valid[t]
        reward, value, next_value = rng.normal(size=(3, steps, num_envs))
        reward[~valid] = 1e6  # the reward of a dummy step must not affect earlier steps
        ended = (terminated | truncated).astype(float)
        arguments = (reward, value, next_value, terminated.astype(float), ended)
        expected = brute_force_gae(*arguments, gamma, lam)
        for estimate in (
            ppo.gae(*(x.copy() for x in arguments), gamma, lam),
            ppo.gae(*(torch.from_numpy(x.copy()) for x in arguments), gamma, lam).numpy(),
        ):
            assert np.allclose(estimate[valid], expected[valid], rtol=1e-10, atol=1e-10)


def test_gae_by_hand() -> None:
    # gamma = lambda = 1/2. The episode ends at t = 1, first by termination, then by truncation; another one begins at t = 2.
    column = np.ones((3, 1))
    reward, value, next_value = 1 * column, 2 * column, 4 * column
    ended = np.array([[0.0], [1.0], [0.0]])
    # delta is 1 + 2 - 2 = 1, or 1 - 2 = -1 where terminated.
    terminated = ppo.gae(reward, value, next_value, ended, ended, 0.5, 0.5)
    assert terminated.ravel().tolist() == [1 - 0.25, -1, 1]
    truncated = ppo.gae(reward, value, next_value, 0 * ended, ended, 0.5, 0.5)
    assert truncated.ravel().tolist() == [1 + 0.25, 1, 1]


def test_gae_does_not_change_its_inputs() -> None:
    arrays = [np.full((3, 2), x) for x in (1.0, 2.0, 3.0, 0.0, 0.0)]
    ppo.gae(*arrays, 0.9, 0.9)
    assert [array.tolist() for array in arrays] == [np.full((3, 2), x).tolist() for x in (1.0, 2.0, 3.0, 0.0, 0.0)]


# --- the successor of every step (traps 1, 2, 15) -----------------------------------------------------------------------------


def true_steps(index: int, steps: int, next_step: bool) -> list[tuple[Any, Any, str]]:
    """Return (observation, true successor, ending) of each step of a Scripted environment, simulated from its script alone."""
    script, episode, time, result = SCRIPTS[index], 0, 0, []
    while len(result) < steps:
        length, kind = script[episode % len(script)]
        ending = kind if time + 1 == length else ""
        result.append(((index, episode, time), (index, episode, time + 1), ending))
        time += 1
        if ending:
            if next_step:
                result.append(((index, episode, time), None, "dummy"))
            episode, time = episode + 1, 0
    return result[:steps]


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pool", [InProcessEnvs, NextStepEnvs, LostEnvs])
def test_next_value_is_that_of_the_true_successor(pool: Any, normalize: bool, compute: str) -> None:
    config = small_config(compute=compute, normalize_observations=normalize)
    parts = assemble(config, pool(scripted(SCRIPTS)))
    perturb(parts)
    rollout = collect(parts)
    evaluation = parts.compute.evaluate(rollout)
    kinds = set()
    for n in range(config.num_envs):
        for t, (obs, successor, ending) in enumerate(true_steps(n, config.rollout_steps, pool is NextStepEnvs)):
            assert rollout.obs[t, n].tolist() == list(obs)
            assert rollout.valid[t, n] == (ending != "dummy")
            assert (rollout.terminated[t, n], rollout.truncated[t, n]) == (ending == "terminated", ending == "truncated")
            assert rollout.starts[t, n] == (obs[2] == 0)
            if ending == "dummy":
                continue
            assert rollout.reward[t, n] == Scripted.reward(*obs)
            assert float(evaluation.value[t, n, 0]) == pytest.approx(value_of(parts, obs), abs=1e-5)
            if ending != "terminated":  # nothing follows a termination, so next_value is not used there
                bootstrapped = obs if pool is LostEnvs and ending == "truncated" else successor
                assert float(evaluation.next_value[t, n, 0]) == pytest.approx(value_of(parts, bootstrapped), abs=1e-5)
            kinds.add(ending)
    assert kinds == {"", "terminated", "truncated"}


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("pool", [InProcessEnvs, NextStepEnvs])
def test_advantages_of_a_whole_rollout_equal_the_definition(pool: Any, compute: str) -> None:
    config = small_config(compute=compute, normalize_observations=True)
    parts = assemble(config, pool(scripted(SCRIPTS)))
    perturb(parts)
    rollout = collect(parts)
    advantage = np.asarray(ppo.advantage(parts, rollout, parts.config.at(0)).advantage).reshape(
        config.rollout_steps, config.num_envs
    )
    for n in range(config.num_envs):
        steps = true_steps(n, config.rollout_steps, pool is NextStepEnvs)
        rows = [
            (Scripted.reward(*obs), value_of(parts, obs), value_of(parts, successor or obs), end == "terminated", end != "")
            for obs, successor, end in steps
        ]
        columns = (np.array(column, float)[:, None] for column in zip(*rows, strict=True))
        expected = brute_force_gae(*columns, config.gamma, config.gae_lambda)[:, 0]
        valid = rollout.valid[:, n]
        assert np.allclose(advantage[valid, n], expected[valid], atol=1e-4)


@pytest.mark.parametrize("compute", COMPUTES)
def test_both_autoreset_styles_give_the_same_advantages_to_the_same_steps(compute: str) -> None:
    config = small_config(compute=compute, normalize_observations=True)
    advantages = []
    for pool in (InProcessEnvs, NextStepEnvs):
        parts = assemble(config, pool(scripted(SCRIPTS)))
        perturb(parts)
        rollout = collect(parts)
        batch = ppo.advantage(parts, rollout, parts.config.at(0))
        ended = (rollout.terminated | rollout.truncated)[::-1].cumsum(0)[::-1] > 0  # steps of episodes that end in the rollout
        keys = [tuple(row) for row in rollout.obs[:-1].reshape(-1, 3).tolist()]
        use = (rollout.valid & ended).ravel()
        advantages.append({key: float(a) for key, a, used in zip(keys, batch.advantage, use, strict=True) if used})
    same_step, next_step = advantages
    shared = same_step.keys() & next_step.keys()
    assert len(shared) >= 12
    assert [same_step[key] for key in shared] == pytest.approx([next_step[key] for key in shared], abs=1e-5)


def test_the_end_of_the_rollout_bootstraps_and_the_next_rollout_continues_from_there() -> None:
    config = small_config(num_envs=1, rollout_steps=4)
    parts = assemble(config, InProcessEnvs(scripted(((NEVER,),))))
    perturb(parts)
    first = collect(parts)
    batch = ppo.advantage(parts, first, parts.config.at(0))
    last = Scripted.reward(0, 0, 3) + 0.9 * value_of(parts, (0, 0, 4)) - value_of(parts, (0, 0, 3))
    assert float(batch.advantage[-1]) == pytest.approx(last, abs=1e-5)
    second = parts.collector.collect(ppo.random_streams(parts, 1), 10**9)
    assert second.obs[:, 0, 2].tolist() == [4, 5, 6, 7, 8]
    assert not second.starts.any()
    assert not (second.terminated | second.truncated).any()


def test_target_is_advantage_plus_value_and_rows_run_over_environments_first() -> None:
    parts = assemble(small_config(), InProcessEnvs(scripted(SCRIPTS)))
    perturb(parts)
    rollout = collect(parts)
    batch = ppo.advantage(parts, rollout, parts.config.at(0))
    assert np.allclose(batch.target[:, 0], batch.advantage + batch.value[:, 0])
    assert np.array_equal(batch.obs[0].reshape(12, 3, 3), rollout.obs[:-1])


# --- dummy steps of next-step autoreset ---------------------------------------------------------------------------------------


def dummy_parts(compute: str, **changes: Any) -> Parts:
    scripts = ((((3, "terminated"),)), (((2, "terminated"),)), (((5, "terminated"),)))
    changes = {"compute": compute, "normalize_observations": True, "normalize_rewards": True, **changes}
    parts = assemble(small_config(**changes), NextStepEnvs(scripted(scripts, changes.pop("space", None))))
    perturb(parts)
    return parts


def spoil(rollout: Rollout) -> Rollout:
    """Return a copy with other rewards, observations and actions in its dummy steps."""
    rollout = copy.deepcopy(rollout)
    dummy = ~rollout.valid
    assert dummy.sum() >= 6
    rollout.reward[dummy] = 1e3
    rollout.obs[:-1][dummy] = -77
    rollout.action[dummy] = 1 - rollout.action[dummy]
    return rollout


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("advantage_norm", ["minibatch", "batch", "off"])
def test_dummy_steps_change_nothing_that_is_learned(compute: str, advantage_norm: str) -> None:
    results = []
    for change in (copy.deepcopy, spoil):
        parts = dummy_parts(compute, advantage_norm=advantage_norm)
        rollout = change(collect(parts))
        batch = ppo.advantage(parts, rollout, parts.config.at(0))
        metrics = ppo.update(parts, batch, ppo.random_streams(parts, 0), at_start(parts), parts.config.phases(0))
        parts.policy.preprocess.merge(rollout.obs, rollout.valid, parts.world)
        results.append((parts, metrics, rollout.steps))
    (plain, plain_metrics, plain_steps), (spoiled, spoiled_metrics, spoiled_steps) = results
    assert plain_steps == spoiled_steps == int(rollout.valid.sum()) < rollout.valid.size
    assert torch.allclose(plain.parameters.values, spoiled.parameters.values, rtol=0, atol=1e-6)
    assert spoiled_metrics == pytest.approx(plain_metrics, abs=1e-5)
    for name, tensor in plain.policy.preprocess.state_dict().items():
        assert torch.equal(tensor, spoiled.policy.preprocess.state_dict()[name]), name
    for name, tensor in plain.reward_scaler.state_dict().items():
        assert torch.equal(tensor, spoiled.reward_scaler.state_dict()[name]), name
    assert np.array_equal(plain.reward_scaler.running_return, spoiled.reward_scaler.running_return)


def test_the_reward_of_a_dummy_step_belongs_to_no_episode() -> None:
    parts = assemble(small_config(), NextStepEnvs(scripted(SCRIPTS), dummy_reward=1e6))
    totals = [episode.total_reward for episode in collect(parts).episodes]
    assert totals
    assert max(totals) < 100


# --- the loss -----------------------------------------------------------------------------------------------------------------


def at_start(parts: Parts) -> Coefficients:
    return dataclasses.replace(parts.config.at(0), learning_rate=0.01)


def make_batch(**columns: Any) -> Batch:
    defaults = dict.fromkeys(field.name for field in dataclasses.fields(Batch))
    return Batch(**{**defaults, "state": (), **columns})


def coefficients(clip: float | None = 0.2, value_clip: float | None = 0.2, **changes: float) -> Coefficients:
    """Return the coefficients of the loss. An infinite limit is off."""
    limits = {name: None if limit == math.inf else limit for name, limit in (("clip", clip), ("value_clip", value_clip))}
    return dataclasses.replace(Config().at(0), **{**limits, "entropy_coef": 0.01, "value_coef": 0.5, "kl_coef": 0.0, **changes})


def test_loss_and_its_gradient_by_hand() -> None:
    # clip 0.2, value_clip 0.5, entropy_coef 0.1, value_coef 0.5
    # row 0: improvement, clipped   1: deterioration, not clipped   2: within the clip range   3: does not count
    ratio = np.array([1.5, 1.5, 1.1, 7.0])
    batch = make_batch(
        log_prob=np.full(4, -1.0),
        advantage=np.array([2.0, -2.0, 1.0, 100.0]),
        value=np.array([[1.0], [0.0], [1.0], [50.0]]),
        target=np.array([[3.0], [-1.0], [2.0], [-50.0]]),
        weight=np.array([0.5, 0.25, 0.25, 0.0]),
    )
    outputs = Outputs(np.log(ratio) - 1, np.array([1.0, 2.0, 3.0, 9.0]), np.array([[2.0], [1.0], [1.2], [0.0]]))
    terms, gradient = ppo.loss(np, outputs, batch, coefficients(0.2, 0.5, entropy_coef=0.1))
    assert terms.policy_loss == pytest.approx(-(0.5 * 2 * 1.2 + 0.25 * -2 * 1.5 + 0.25 * 1.1))
    # 0: V is clipped to 1.5, error -1.5; 1: clipped to 0.5, but the unclipped error 2 is larger; 2: within 0.5 of the old value,
    # error -0.8
    assert terms.value_loss == pytest.approx(0.5 * (0.5 * 2.25 + 0.25 * 4 + 0.25 * 0.64))
    assert terms.entropy == pytest.approx(0.5 * 1 + 0.25 * 2 + 0.25 * 3)
    assert terms.old_approx_kl == pytest.approx(-(0.75 * math.log(1.5) + 0.25 * math.log(1.1)))
    assert terms.approx_kl == pytest.approx(0.75 * (0.5 - math.log(1.5)) + 0.25 * (0.1 - math.log(1.1)))
    assert terms.clipfrac == pytest.approx(0.75)
    assert gradient.log_prob == pytest.approx([0, 0.25 * 2 * 1.5, -0.25 * 1.1, 0])
    assert gradient.entropy == pytest.approx([-0.05, -0.025, -0.025, 0])
    assert gradient.value.ravel() == pytest.approx([0, 0.5 * 0.25 * 2, 0.5 * 0.25 * -0.8, 0])


def textbook(
    outputs: Outputs, batch: Batch, clip: float, value_clip: float, ent: float, vf: float, kl: float = 0.0
) -> tuple[Any, ...]:
    """Core details 8-10 as they are usually written: losses to minimize, by torch.max and clamp; and the KL penalty."""
    ratio = (outputs.log_prob - batch.log_prob).exp()
    policy_loss = torch.max(-batch.advantage * ratio, -batch.advantage * torch.clamp(ratio, 1 - clip, 1 + clip))
    unclipped = (outputs.value - batch.target) ** 2
    clipped = (batch.value + torch.clamp(outputs.value - batch.value, -value_clip, value_clip) - batch.target) ** 2
    value_loss = 0.5 * torch.max(unclipped, clipped).sum(-1)
    divergence = (ratio - 1) - ratio.log()
    total = (batch.weight * (policy_loss + vf * value_loss - ent * outputs.entropy + kl * divergence)).sum()
    return (total, *((batch.weight * term).sum() for term in (policy_loss, value_loss, outputs.entropy)))


@pytest.mark.parametrize(
    ("clip", "value_clip", "kl"), [(0.2, 0.2, 0.0), (0.2, math.inf, 0.0), (math.inf, 0.2, 0.7), (0.2, 0.2, 3.0)]
)
@pytest.mark.parametrize("seed", range(5))
def test_loss_equals_autograd_on_the_textbook_formula(seed: int, clip: float, value_clip: float, kl: float) -> None:
    rng = np.random.default_rng(seed)
    rows = 200
    columns = {name: rng.normal(size=rows) for name in ("log_prob", "advantage")}
    columns |= {name: rng.normal(size=(rows, 2)) for name in ("value", "target")}  # two value streams
    weight = rng.random(rows) * rng.integers(0, 2, rows)
    columns["weight"] = weight / weight.sum()
    assert (weight == 0).sum() > 50
    # Half of the ratios within 1 +- 0.2, half far beyond; new values on both sides of the clip range.
    log_ratio = np.where(rng.integers(0, 2, rows), 0.1, 1.0) * rng.normal(size=rows)
    values = np.where(rng.integers(0, 2, (rows, 2)), 0.1, 1.0) * rng.normal(size=(rows, 2)) + columns["value"]
    arrays = (columns["log_prob"] + log_ratio, rng.random(rows), values)

    torch_batch = make_batch(**{name: torch.from_numpy(column) for name, column in columns.items()})
    leaves = Outputs(*(torch.from_numpy(array).requires_grad_() for array in arrays))
    total, policy_loss, value_loss, entropy = textbook(leaves, torch_batch, clip, value_clip, 0.01, 0.5, kl)
    total.backward()
    for library, outputs, batch in (
        (np, Outputs(*arrays), make_batch(**columns)),
        (torch, Outputs(*(torch.from_numpy(array) for array in arrays)), torch_batch),
    ):
        terms, gradient = ppo.loss(library, outputs, batch, coefficients(clip, value_clip, kl_coef=kl))
        assert float(terms.policy_loss) == pytest.approx(policy_loss.item(), abs=1e-12)
        assert float(terms.value_loss) == pytest.approx(value_loss.item(), abs=1e-12)
        assert float(terms.entropy) == pytest.approx(entropy.item(), abs=1e-12)
        for name, slope, leaf in zip(Outputs._fields, gradient, leaves, strict=True):
            assert np.allclose(np.asarray(slope), leaf.grad.numpy(), rtol=0, atol=1e-12), name


def test_loss_of_numpy_and_torch_agree_in_single_precision() -> None:
    rng = np.random.default_rng(0)
    columns = {name: rng.normal(size=64).astype(np.float32) for name in ("log_prob", "advantage")}
    columns |= {name: rng.normal(size=(64, 1)).astype(np.float32) for name in ("value", "target")}
    columns["weight"] = np.full(64, 1 / 64, np.float32)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in (64, 64, (64, 1))]
    by_numpy = ppo.loss(np, Outputs(*arrays), make_batch(**columns), coefficients())
    tensors = make_batch(**{name: torch.from_numpy(column) for name, column in columns.items()})
    by_torch = ppo.loss(torch, Outputs(*map(torch.from_numpy, arrays)), tensors, coefficients())
    for ours, theirs in zip((*by_numpy[0], *by_numpy[1]), (*by_torch[0], *by_torch[1]), strict=True):
        assert np.asarray(ours).dtype == np.float32
        assert np.allclose(ours, theirs.numpy(), rtol=1e-6, atol=1e-6)


def test_kl_estimate_is_never_negative_while_the_plain_one_may_be() -> None:
    rng = np.random.default_rng(0)
    plain = []
    for _ in range(100):
        zeros = np.zeros(8)
        column = zeros[:, None]
        batch = make_batch(log_prob=zeros, value=column, advantage=zeros, target=column, weight=np.full(8, 0.125))
        terms, _ = ppo.loss(np, Outputs(rng.normal(0, 0.3, 8), zeros, column), batch, coefficients(entropy_coef=0.0))
        assert terms.approx_kl >= 0
        plain.append(terms.old_approx_kl)
    assert min(plain) < 0


# --- the update ---------------------------------------------------------------------------------------------------------------


class SharedKl(Solo):
    """A world in which the KL divergence over all ranks is what the test says."""

    def __init__(self, shared: list[float]) -> None:
        self.shared, self.parts = shared, None
        self.local: list[float] = []

    def sum_(self, tensor: torch.Tensor) -> None:
        if self.parts is not None and tensor.data_ptr() == self.parts.parameters.message.data_ptr():
            terms = self.parts.parameters.terms
            self.local.append(terms[KL].item())
            terms[KL] = self.shared.pop(0) if self.shared else 0.0


def updated(compute: str, world: Any = None, **changes: Any) -> tuple[Parts, torch.Tensor, dict[str, float]]:
    """Return parts after one update, the weights before it, and its metrics."""
    parts = assemble(small_config(compute=compute, **changes), InProcessEnvs(scripted(SCRIPTS)), world)
    perturb(parts)
    if isinstance(world, SharedKl):
        world.parts = parts
    batch = ppo.advantage(parts, collect(parts), parts.config.at(0))
    before = parts.parameters.values.clone()
    return parts, before, ppo.update(parts, batch, ppo.random_streams(parts, 0), at_start(parts), parts.config.phases(0))


@pytest.mark.parametrize("compute", COMPUTES)
def test_the_kl_stop_skips_the_stopping_minibatch_and_uses_the_kl_over_all_ranks(compute: str) -> None:
    world = SharedKl([0.0, 0.0, 1.0])
    stopped, _, _ = updated(compute, world, epochs=4, target_kl=0.5)
    assert max(world.local) < 0.5  # this rank's own KL divergence would not have stopped it
    two_steps, _, _ = updated(compute, epochs=1)
    assert stopped.optimizer.rules[0].steps == two_steps.optimizer.rules[0].steps == 2
    assert torch.equal(stopped.parameters.values, two_steps.parameters.values)


def test_a_kl_stop_at_the_first_minibatch_changes_no_weight() -> None:
    parts, before, _ = updated("numpy", SharedKl([1.0]), target_kl=0.5)
    assert parts.optimizer.rules[0].steps == 0
    assert torch.equal(parts.parameters.values, before)


def test_the_kl_stop_does_not_use_the_kl_of_this_rank_alone() -> None:
    world = SharedKl([])
    parts, _, _ = updated("numpy", world, epochs=4, target_kl=1e-9)
    assert max(world.local) > 1e-9
    assert parts.optimizer.rules[0].steps == 8


def test_a_single_rank_stops_by_its_own_kl_and_without_a_target_never() -> None:
    tight, _, tight_metrics = updated("numpy", epochs=10, target_kl=1e-6)
    assert 1 <= tight.optimizer.rules[0].steps < 20
    never, _, metrics = updated("numpy", epochs=10, target_kl=None)
    assert never.optimizer.rules[0].steps == 20
    assert metrics["losses/approx_kl"] > tight_metrics["losses/approx_kl"]


@pytest.mark.parametrize("compute", COMPUTES)
def test_max_grad_norm_limits_the_global_norm(compute: str) -> None:
    free, _, _ = updated(compute, epochs=1, num_minibatches=1, max_grad_norm=None)
    norm = free.parameters.gradient.norm().item()
    assert norm > 0.1
    clipped, _, _ = updated(compute, epochs=1, num_minibatches=1, max_grad_norm=0.1)
    assert clipped.parameters.gradient.norm().item() == pytest.approx(0.1, rel=1e-4)
    # All elements have the same factor. Clipping each element or each layer would change the direction.
    assert torch.allclose(clipped.parameters.gradient * norm / 0.1, free.parameters.gradient, rtol=1e-3, atol=1e-6)
    loose, _, _ = updated(compute, epochs=1, num_minibatches=1, max_grad_norm=2 * norm)
    assert torch.equal(loose.parameters.gradient, free.parameters.gradient)


@pytest.mark.parametrize("compute", COMPUTES)
def test_one_update_step_equals_autograd_and_torch_adam_on_the_whole_policy(compute: str) -> None:
    changes = {"epochs": 1, "num_minibatches": 1, "normalize_observations": True, "entropy_coef": 0.1, "max_grad_norm": 0.5}
    config = small_config(compute=compute, **changes)
    reference = assemble(config.replace(compute="autograd"), InProcessEnvs(scripted(SCRIPTS)))
    perturb(reference)
    batch = ppo.advantage(reference, collect(reference), reference.config.at(0))
    policy = copy.deepcopy(reference.policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01, eps=1e-5)
    logits = policy.action(policy.actor(batch.obs))
    distribution = torch.distributions.Categorical(logits=logits)
    values = policy.value(policy.critic(batch.obs))
    outputs = Outputs(distribution.log_prob(batch.action), distribution.entropy(), values)
    batch.advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
    batch.weight = torch.full_like(batch.weight, 1 / len(batch.weight))
    optimizer.zero_grad()
    textbook(outputs, batch, 0.2, 0.2, 0.1, 0.5)[0].backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
    optimizer.step()

    parts, before, _ = updated(compute, **changes)
    expected = torch.nn.utils.parameters_to_vector([p for group in policy.groups() for p in group]).detach()
    assert (parts.parameters.values - before).abs().max() > 0.005
    assert torch.allclose(parts.parameters.values, expected, rtol=0, atol=2e-5)


def test_an_update_with_a_loss_of_nan_raises_an_error() -> None:
    parts = assemble(small_config(), InProcessEnvs(scripted(SCRIPTS)))
    batch = ppo.advantage(parts, collect(parts), parts.config.at(0))
    parts.parameters.values.fill_(math.nan)
    with pytest.raises(ProxRLError, match="learning-rate"):
        ppo.update(parts, batch, ppo.random_streams(parts, 0), at_start(parts), parts.config.phases(0))


def test_learning_rate_falls_linearly_to_zero_at_the_planned_end() -> None:
    config = small_config(total_steps=100, learning_rate=0.02)
    assert config.planned_steps == 108
    assert [config.at(step).learning_rate for step in (0, 27, 54, 108)] == pytest.approx([0.02, 0.015, 0.01, 0])
    assert config.replace(anneal_learning_rate=False).at(54).learning_rate == 0.02
    session = train(assemble(config, InProcessEnvs(scripted(SCRIPTS))))
    assert [metrics["charts/learning_rate"] for metrics in session.metrics] == pytest.approx([0.02, 0.02 * 2 / 3, 0.02 / 3])


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("offset", [0.0, 3000.0])
def test_explained_variance(compute: str, offset: float) -> None:
    parts = assemble(small_config(compute=compute), InProcessEnvs(scripted(SCRIPTS)))
    target = np.array([1.0, 2.0, 3.0, 4.0, 999.0])
    weight = np.array([1, 1, 1, 1, 0], np.float32)

    def explained(value: Any) -> float:
        columns = {"target": (target + offset)[:, None], "value": (np.array(value) + offset)[:, None]}
        arrays = {name: parts.compute.array(column.astype(np.float32)) for name, column in columns.items()}
        return ppo.explained_variance(parts, make_batch(**arrays, weight=parts.compute.array(weight)))

    assert explained([1, 2, 3, 4, 0]) == pytest.approx(1, abs=1e-3)
    assert explained([7, 7, 7, 7, 0]) == pytest.approx(0, abs=1e-3)
    # Residuals (1, 1, -1, -1) of targets (1, 2, 3, 4): 1 - 4 / 5.
    assert explained([0, 1, 4, 5, 0]) == pytest.approx(0.2, abs=1e-3)
    assert explained([4, 3, 2, 1, 0]) == pytest.approx(-3, abs=1e-3)


# --- frozen statistics, stored actions (traps 9, 10) --------------------------------------------------------------------------


@pytest.mark.parametrize("compute", COMPUTES)
def test_the_policy_that_learns_is_the_policy_that_acted(compute: str) -> None:
    """Observation statistics change a lot between iterations here, so merging them at any other time would be noticed."""
    config = small_config(compute=compute, normalize_observations=True, total_steps=36 * 5)
    parts = assemble(config, InProcessEnvs(scripted(SCRIPTS, BOX)))
    evaluate, forward = parts.compute.evaluate, parts.compute.forward
    acting_errors: list[float] = []
    ratio_errors: list[float] = []
    first_minibatch = [False]

    def recording_evaluate(rollout: Rollout) -> Any:
        evaluation = evaluate(rollout)
        streams = [generator(config.seed, Purpose.ROLLOUT, env, len(acting_errors)) for env in range(3)]
        noise = np.stack([parts.policy.head.noise(stream, config.rollout_steps) for stream in streams], axis=1)
        # action = mean + standard deviation * noise, so the noise determines the log-probability at the time of acting.
        log_std = parts.policy.head.log_std.detach().numpy()
        log_prob = (-0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        acting_errors.append(float(np.abs(np.asarray(evaluation.log_prob) - log_prob).max()))
        first_minibatch[0] = True
        return evaluation

    def recording_forward(batch: Batch) -> Outputs:
        outputs = forward(batch)
        if first_minibatch[0]:
            ratio_errors.append(float(np.abs(np.exp(np.asarray(outputs.log_prob - batch.log_prob)) - 1).max()))
        first_minibatch[0] = False
        return outputs

    parts.compute.evaluate, parts.compute.forward = recording_evaluate, recording_forward
    train(parts)
    assert len(acting_errors) == len(ratio_errors) == 5
    assert max(acting_errors) < 1e-5
    assert max(ratio_errors) < 1e-5
    assert parts.policy.preprocess.moments.count == 36 * 5


@pytest.mark.parametrize("compute", COMPUTES)
def test_the_sampled_action_is_stored_and_the_environment_receives_it_clipped(compute: str) -> None:
    config = small_config(compute=compute, num_envs=1)
    pool = NextStepEnvs(scripted(((NEVER,),), BOX))
    parts = assemble(config, pool)
    rollout = collect(parts)
    received = np.stack(pool.envs[0].received)
    stored = rollout.action[:, 0]
    assert (np.abs(stored) > 0.5).any()
    assert np.array_equal(received, np.clip(stored, -0.5, 0.5))
    batch = ppo.advantage(parts, rollout, parts.config.at(0))
    assert np.array_equal(np.asarray(batch.action), stored)
    with torch.no_grad():
        mean = parts.policy.action(parts.policy.actor(torch.from_numpy(rollout.obs[:-1, 0])))
    normal = torch.distributions.Normal(mean, parts.policy.head.log_std.detach().exp())
    assert np.allclose(batch.log_prob, normal.log_prob(torch.from_numpy(stored)).sum(-1), atol=1e-5)


def test_the_log_standard_deviation_is_the_parameter() -> None:
    parts = assemble(small_config(log_std_init=-0.7), InProcessEnvs(scripted(SCRIPTS, BOX)))
    parameter = dict(parts.policy.named_parameters())["head.log_std"]
    assert parameter.tolist() == pytest.approx([-0.7, -0.7])
    # Steps that would make a standard deviation of 0.5 negative make it small instead.
    parts.parameters.gradient.zero_()
    parameter.grad.fill_(1.0)
    for _ in range(50):
        parts.optimizer.step(dataclasses.replace(at_start(parts), learning_rate=0.1), parts.config.phases(0)[0])
    assert parameter.max() < -4
    parts.compute.freeze()
    rollout = collect(parts)
    assert np.isfinite(ppo.advantage(parts, rollout, parts.config.at(0)).log_prob).all()


# --- the budget ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", [InProcessEnvs, NextStepEnvs])
def test_a_run_ends_exactly_at_its_planned_steps(pool: Any) -> None:
    config = small_config(total_steps=100, normalize_observations=True)
    parts = assemble(config, pool(scripted(SCRIPTS)))
    session = train(parts)
    assert session.step == config.planned_steps == 108
    assert parts.policy.preprocess.moments.count == 108
    full = [int(valid.sum()) for valid in session.valid]
    assert sum(full) == 108
    # Dummy steps do not count, so a pool that has them needs one more iteration, which ends at the budget.
    assert session.iteration == (3 if pool is InProcessEnvs else 4)
    assert all(valid.any(1).all() for valid in session.valid[-1:])


@pytest.mark.parametrize("budget", [1, 7, 10, 16, 35])
def test_collecting_stops_at_the_budget(budget: int) -> None:
    """The steps that count are the first ones in order of time, and no further row is collected."""
    parts = assemble(small_config(), NextStepEnvs(scripted(SCRIPTS)))
    whole = collect(parts).valid.copy()
    parts = assemble(small_config(), NextStepEnvs(scripted(SCRIPTS)))
    rollout = collect(parts, budget=budget)
    counted = [tuple(index) for index in np.argwhere(whole)][:budget]
    assert rollout.steps == len(counted)
    assert [tuple(index) for index in np.argwhere(rollout.valid)] == counted
    steps = counted[-1][0] + 1
    assert {len(column) for column in (rollout.action, rollout.reward, rollout.valid, rollout.last)} == {steps}
    assert (len(rollout.obs), len(rollout.starts)) == (steps + 1, steps + 1)


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("budget", [7, 8, 15])
def test_nothing_past_the_budget_enters_advantages(compute: str, budget: int) -> None:
    """Rewards past the budget are multiplied by 1000, which must not change the advantages or the episodes of counted rows."""
    estimates = []
    for factor in (1.0, 1000.0):
        parts = assemble(small_config(compute=compute), NextStepEnvs(scripted(SCRIPTS)))
        perturb(parts)
        rollout = collect(parts, budget=budget)
        assert rollout.last[-2].any(), "no step past the budget follows a counted one, so this test would check nothing"
        rollout.reward[~rollout.valid] *= factor
        batch = ppo.advantage(parts, rollout, parts.config.at(0))
        counts = np.asarray(batch.weight) > 0
        estimates.append(np.asarray(batch.advantage)[counts])
        # The definition, from the rewards of counted rows alone: the last one of each environment bootstraps.
        evaluation = parts.compute.evaluate(rollout)
        value, next_value = np.asarray(evaluation.value)[..., 0], np.asarray(evaluation.next_value)[..., 0]
        expected = np.zeros(rollout.reward.shape)
        for n in range(3):
            advantage = 0.0
            for t in reversed(np.flatnonzero(rollout.valid[:, n])):
                follows = t + 1 < len(rollout.valid) and rollout.valid[t + 1, n]
                ended = rollout.terminated[t, n] or rollout.truncated[t, n]
                delta = rollout.reward[t, n] + 0.9 * (not rollout.terminated[t, n]) * next_value[t, n] - value[t, n]
                advantage = delta + 0.9 * 0.8 * advantage * (follows and not ended)
                expected[t, n] = advantage
        assert np.allclose(estimates[-1], expected.reshape(-1)[counts], atol=1e-5)
        assert all(rollout.valid[episode.step, episode.env] for episode in rollout.episodes)
    assert np.array_equal(*estimates)


def test_episodes_that_end_past_the_budget_do_not_count() -> None:
    # Both environments end an episode in the first row; the budget has room for one of them.
    parts = assemble(small_config(num_envs=2), NextStepEnvs(scripted([((1, "terminated"),)] * 2)))
    rollout = collect(parts, budget=1)
    assert [(episode.env, episode.step) for episode in rollout.episodes] == [(0, 0)]
    assert parts.collector.progress(rollout).steps == 1


def test_an_episode_reported_on_a_dummy_step_counts_before_the_end_of_the_budget() -> None:
    """ale-py's pool reports a game that ends with lives left on the dummy step after it."""

    class LateReports(NextStepEnvs):
        def step(self, action: Any) -> Any:
            step = super().step(action)
            reported = getattr(self, "late", [])
            self.late = step.episodes
            return step._replace(episodes=reported)

    for budget in (16, 12, 10):  # within a row, or at its end
        rollout = collect(assemble(small_config(), LateReports(scripted(SCRIPTS))), budget=budget)
        assert (0, 3) in [(episode.env, episode.step) for episode in rollout.episodes]
        assert not rollout.valid[3, 0]


def test_an_environment_may_write_to_its_actions() -> None:
    class Writing(NextStepEnvs):
        def step(self, action: Any) -> Any:
            step = super().step(action)
            action -= 1
            return step

    rollout = collect(assemble(small_config(), Writing(scripted(SCRIPTS))))
    assert set(np.unique(rollout.action)) <= {0, 1}


def test_what_is_acted_on_next_does_not_belong_to_the_pool() -> None:
    """Worker processes share their buffers: an array kept beyond the run would keep the memory too."""
    environments = InProcessEnvs(scripted(SCRIPTS))
    parts = assemble(small_config(), environments)
    collect(parts)
    assert not np.shares_memory(parts.collector.player.obs, environments.step(np.zeros(3, np.int64)).obs)


def test_an_update_on_a_single_valid_step_stays_finite() -> None:
    parts = assemble(small_config(), InProcessEnvs(scripted(SCRIPTS)))
    batch = ppo.advantage(parts, collect(parts, budget=1), parts.config.at(0))
    metrics = ppo.update(parts, batch, ppo.random_streams(parts, 0), at_start(parts), parts.config.phases(0))
    assert torch.isfinite(parts.parameters.values).all()
    assert all(math.isfinite(metrics[f"losses/{name}"]) for name in ppo.Terms._fields)


def test_a_stop_request_ends_training_after_the_iteration() -> None:
    session = train(assemble(small_config(), InProcessEnvs(scripted(SCRIPTS))), iterations=1)
    assert (session.iteration, session.step) == (1, 36)


def test_weights_of_each_minibatch_sum_to_one_over_ranks() -> None:
    config = small_config(num_envs=2, rollout_steps=6)

    def sums(world: Any) -> list[float]:
        parts = assemble(config, InProcessEnvs(scripted(SCRIPTS[world.rank : world.rank + 1])), world, world.rank)
        batch = ppo.advantage(parts, collect(parts), parts.config.at(0))
        batch.weight[: 2 * world.rank] = 0  # ranks with different numbers of valid rows
        streams = ppo.random_streams(parts, 0)
        return [
            float(b.weight.sum())
            for b in Minibatches(config, parts.compute, world, world.rank).draw(batch, streams, config.epochs)
        ]

    first, second = run_ranks(2, sums)
    assert [a + b for a, b in zip(first, second, strict=True)] == pytest.approx([1.0] * 4)


@pytest.mark.parametrize("compute", COMPUTES)
def test_a_short_last_batch_takes_fewer_steps_and_skips_empty_minibatches(compute: str) -> None:
    config = small_config(compute=compute, num_minibatches=6, epochs=3)
    parts = assemble(config, InProcessEnvs(scripted(SCRIPTS)))
    # 36 rows in minibatches of 6, of which 7 rows count. They fit into two minibatches.
    batch = ppo.advantage(parts, collect(parts, budget=7), parts.config.at(0))
    drawn = list(Minibatches(config, parts.compute, Solo(), 0).draw(batch, ppo.random_streams(parts, 0), config.epochs))
    assert len(drawn) <= 2 * config.epochs
    assert all(float(minibatch.weight.sum()) == pytest.approx(1) for minibatch in drawn)
    # Rows that do not count are left out: all rows of a large batch of images would not fit into memory at once.
    assert all((np.asarray(minibatch.weight) > 0).all() for minibatch in drawn)
    assert all(len(next(tree_leaves(minibatch.obs))) == len(minibatch.weight) for minibatch in drawn)
    assert sum(len(minibatch.weight) for minibatch in drawn) == 7 * config.epochs
    ppo.update(parts, batch, ppo.random_streams(parts, 0), at_start(parts), parts.config.phases(0))
    assert int(parts.optimizer.rules[0].steps) == len(drawn)
