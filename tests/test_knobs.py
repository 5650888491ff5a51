"""Every setting of the algorithm has its documented effect: each test fails if its setting does nothing."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import proxrl
from harness import NEVER, NextStepEnvs, assemble, collect, run_ranks, scripted, train
from proxrl import ppo
from proxrl.build import Parts
from proxrl.collect.minibatches import Minibatches
from proxrl.config import Config, Phase
from proxrl.config.schedule import parse_schedule
from proxrl.engine.adaptive import AdaptiveCoefficients
from proxrl.engine.descent import microbatches
from proxrl.engine.threads import arithmetic
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.envs.registry import make_environments
from proxrl.errors import ProxRLError
from proxrl.world.solo import Solo

COMPUTES = ("numpy", "autograd")
SCRIPTS = (((3, "terminated"), (2, "truncated")), ((4, "truncated"), (1, "terminated"), (1, "truncated")), (NEVER,))
BOX = spaces.Box(-0.5, 0.5, (2,), np.float32)
POLICY_ONLY, VALUE_ONLY = Phase(1, policy=True, value=False), Phase(1, policy=False, value=True)


def small_config(**changes: Any) -> Config:
    settings = {"num_envs": 3, "rollout_steps": 12, "num_minibatches": 2, "epochs": 2, "hidden_sizes": (8,), "gamma": 0.9}
    return Config(**{**settings, "gae_lambda": 0.8, "total_steps": 72, "learning_rate": 0.01, **changes}).validate()


def make_parts(pool: Any = None, **changes: Any) -> Parts:
    parts = assemble(small_config(**changes), pool or InProcessEnvs(scripted(SCRIPTS)))
    generator = torch.Generator().manual_seed(0)
    parts.parameters.values += 0.3 * torch.randn(parts.parameters.values.shape, generator=generator)
    parts.compute.freeze()
    return parts


def updated(phases: Any = None, **changes: Any) -> tuple[Parts, torch.Tensor, dict[str, float]]:
    """Return parts after one update, the weights before it, and its metrics."""
    parts = make_parts(**changes)
    now = parts.adaptive.apply_to(parts.config.at(0))
    batch = ppo.advantage(parts, collect(parts), now)
    before = parts.parameters.values.clone()
    metrics = ppo.update(parts, batch, ppo.random_streams(parts, 0), now, phases or parts.config.phases(0))
    return parts, before, metrics


def changed(parts: Parts, before: torch.Tensor) -> tuple[bool, bool]:
    """Return whether the weights of the policy and of the value have changed."""
    return tuple(not torch.equal(parts.parameters.values[part], before[part]) for part in parts.parameters.groups)  # type: ignore[return-value]


# --- all settings -------------------------------------------------------------------------------------------------------------


def test_every_setting_is_read_somewhere() -> None:
    source = Path(proxrl.__file__).parent
    code = "\n".join(path.read_text() for path in source.rglob("*.py"))
    declared, methods = (source / "config/config.py").read_text().split("@property", 1)
    outside = code.replace(declared, "")
    assert methods in outside
    for field in dataclasses.fields(Config):
        if field.name == "engine":
            continue  # has one choice so far, and validation reads that
        # As an attribute, or by its name in a string, as schedules and plugins are.
        assert re.search(rf'(config|self|now|resolved|options)\.{field.name}\b|"{field.name}"', outside), field.name


# --- epochs and optimizers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize(("phase", "expected"), [(POLICY_ONLY, (True, False)), (VALUE_ONLY, (False, True))])
def test_a_phase_changes_only_what_learns_in_it(compute: str, phase: Phase, expected: tuple[bool, bool]) -> None:
    parts, before, _ = updated([phase], compute=compute, value_epochs=1)
    assert changed(parts, before) == expected


@pytest.mark.parametrize("compute", COMPUTES)
def test_value_epochs_are_passes_of_the_value_after_those_of_the_policy(compute: str) -> None:
    parts, before, metrics = updated(compute=compute, epochs=3, value_epochs=5)
    assert changed(parts, before) == (True, True)
    assert [int(rule.steps) for rule in parts.optimizer.rules] == [3 * 2, 5 * 2]
    assert metrics.keys() >= {"losses/policy_loss", "losses/value_loss", "losses/final_kl"}
    # With separate networks, it makes no difference to the policy whether the value learns with it or after it, except through
    # the limit of the gradient's norm, which is over both.
    joint, _, _ = updated(compute=compute, epochs=3, max_grad_norm=None)
    separate, _, _ = updated(compute=compute, epochs=3, value_epochs=5, max_grad_norm=None)
    part = joint.parameters.groups[0]
    assert torch.allclose(joint.parameters.values[part], separate.parameters.values[part], atol=1e-6)


def test_the_kl_stop_ends_the_policys_epochs_but_not_the_values() -> None:
    parts, _, _ = updated(epochs=10, value_epochs=10, target_kl=1e-6)
    policy_steps, value_steps = (int(rule.steps) for rule in parts.optimizer.rules)
    assert policy_steps < 20
    assert value_steps == 20


def test_in_a_value_phase_only_the_value_has_a_gradient() -> None:
    parts, _, _ = updated([VALUE_ONLY], value_epochs=1, num_minibatches=1, max_grad_norm=None)
    policy, value = parts.parameters.groups
    assert parts.parameters.gradient[policy].abs().max() == 0
    assert parts.parameters.gradient[value].abs().max() > 0


def test_value_learning_rate_and_value_optimizer_do_not_affect_the_policy() -> None:
    plain, before, _ = updated(epochs=1, max_grad_norm=None)
    policy, value = plain.parameters.groups
    for changes in ({"value_learning_rate": 0.05}, {"value_optimizer": "sgd"}):
        other, _, _ = updated(epochs=1, max_grad_norm=None, **changes)
        assert torch.allclose(other.parameters.values[policy], plain.parameters.values[policy], atol=1e-6)
        assert not torch.allclose(other.parameters.values[value], plain.parameters.values[value], atol=1e-3)
    faster = updated([Phase(1, True, True)], num_minibatches=1, value_learning_rate=0.05)[0].parameters.values[value]
    slower = updated([Phase(1, True, True)], num_minibatches=1)[0].parameters.values[value]
    # Adam's first step moves every parameter that has a gradient by the learning rate.
    assert (faster - before[value]).abs().max().item() == pytest.approx(0.05, rel=1e-2)
    assert (slower - before[value]).abs().max().item() == pytest.approx(0.01, rel=1e-2)


def test_a_constant_value_learning_rate_is_annealed_like_that_of_the_policy() -> None:
    config = Config(value_learning_rate=0.4, total_steps=512 * 4)
    assert [config.at(step).value_learning_rate for step in (0, 1024)] == pytest.approx([0.4, 0.2])
    assert config.replace(anneal_learning_rate=False).at(1024).value_learning_rate == 0.4


def test_value_learning_rate_may_follow_a_schedule() -> None:
    config = Config(value_learning_rate=parse_schedule("linear:0.2:0.1"), total_steps=512 * 4).validate()
    assert [config.at(step).value_learning_rate for step in (0, 1024)] == pytest.approx([0.2, 0.15])
    assert "value_learning_rate" in config.scheduled


@pytest.mark.parametrize("name", ["adamw", "sgd", "rmsprop"])
def test_the_optimizer_can_be_chosen(name: str) -> None:
    adam, other = (updated(optimizer=rule, weight_decay=0.1)[0].parameters.values for rule in ("adam", name))
    assert not torch.allclose(adam, other, atol=1e-4)


def test_momentum_changes_the_steps_of_sgd() -> None:
    heavy, light = (updated(optimizer="sgd", momentum=momentum)[0].parameters.values for momentum in (0.9, 0.0))
    assert not torch.allclose(heavy, light, atol=1e-5)


def test_weight_decay_pulls_all_weights_toward_zero() -> None:
    free, before, _ = updated(optimizer="adamw", weight_decay=0.0, epochs=1, num_minibatches=1)
    pulled, _, _ = updated(optimizer="adamw", weight_decay=0.5, epochs=1, num_minibatches=1)
    assert torch.allclose(pulled.parameters.values, free.parameters.values - 0.01 * 0.5 * before, atol=1e-6)


# --- gradient accumulation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 9])
def test_microbatches_add_up_to_the_step_of_their_minibatch(count: int) -> None:
    whole, before, metrics = updated(compute="autograd")
    accumulated, _, same_metrics = updated(accumulate=count)
    assert (whole.parameters.values - before).abs().max() > 0.005
    assert torch.allclose(accumulated.parameters.values, whole.parameters.values, atol=1e-5)
    assert same_metrics == pytest.approx(metrics, abs=1e-5)


def test_microbatches_are_smaller_and_hold_every_row_once() -> None:
    parts = make_parts(accumulate=3)
    batch = ppo.advantage(parts, collect(parts), parts.config.at(0))
    config = parts.config
    for minibatch in Minibatches(config, parts.compute, Solo(), 0).draw(batch, ppo.random_streams(parts, 0), 1):
        parts_of_minibatch = list(microbatches(minibatch, 3))
        assert [len(microbatch.weight) for microbatch in parts_of_minibatch] == [6, 6, 6]
        assert torch.equal(torch.cat([microbatch.obs for microbatch in parts_of_minibatch]), minibatch.obs)


def test_accumulated_gradients_are_summed_over_ranks_once_per_step() -> None:
    class CountingWorld(Solo):
        messages = 0

        def sum_(self, tensor: torch.Tensor) -> None:
            self.messages += tensor.numel() == size

    parts = assemble(small_config(accumulate=3), InProcessEnvs(scripted(SCRIPTS)), world := CountingWorld())
    size = parts.parameters.message.numel()
    batch = ppo.advantage(parts, collect(parts), parts.config.at(0))
    ppo.update(parts, batch, ppo.random_streams(parts, 0), parts.config.at(0), parts.config.phases(0))
    assert world.messages == 2 * 2  # epochs x minibatches


# --- trust region -------------------------------------------------------------------------------------------------------------


def test_a_kl_penalty_keeps_the_policy_closer() -> None:
    free, penalized = (updated(epochs=10, clip=None, kl_coef=coef)[2]["losses/final_kl"] for coef in (0.0, 30.0))
    assert penalized < 0.5 * free


def test_clip_off_is_no_clipping() -> None:
    clipped, free = (updated(epochs=10, clip=clip)[2] for clip in (0.01, None))
    assert clipped["losses/clipfrac"] > 0
    assert free["losses/clipfrac"] == 0
    assert free["losses/final_kl"] > 2 * clipped["losses/final_kl"]


@pytest.mark.parametrize(
    ("divergence", "penalty", "step_size"), [(0.1, 2.0, 1 / 1.5), (0.001, 0.5, 1.5), (0.011, 1.0, 1.0), (0.016, 2.0, 1.0)]
)
def test_adaptive_coefficients_by_hand(divergence: float, penalty: float, step_size: float) -> None:
    adaptive = AdaptiveCoefficients(penalty_target=0.01, learning_rate_target=0.01)
    now = Config(kl_coef=3.0, learning_rate=0.5, anneal_learning_rate=False).at(0)
    for power in (1, 2):
        adaptive.observe({"losses/final_kl": divergence})
        after = adaptive.apply_to(now)
        assert after.kl_coef == pytest.approx(3 * penalty**power)
        assert after.learning_rate == pytest.approx(0.5 * step_size**power)
    adaptive.observe({})  # an update that took no step
    assert adaptive.apply_to(now) == after


def test_without_targets_the_coefficients_stay() -> None:
    adaptive, now = AdaptiveCoefficients(None, None), Config(kl_coef=3.0).at(0)
    for divergence in (100.0, 1e-9):
        adaptive.observe({"losses/final_kl": divergence})
    assert adaptive.apply_to(now) == now


def test_adaptive_settings_bring_the_kl_divergence_to_their_target() -> None:
    """The KL divergence over the last ten of forty iterations, compared with the same run without them, which is far from it."""
    pool = {"num_envs": 3, "total_steps": 36 * 40, "epochs": 4, "clip": None, "anneal_learning_rate": False}

    def divergence(**changes: Any) -> tuple[float, dict[str, float]]:
        session = train(make_parts(InProcessEnvs(scripted(SCRIPTS, BOX)), **pool, **changes))
        return float(np.mean([metrics["losses/final_kl"] for metrics in session.metrics[-10:]])), session.metrics[-1]

    too_high, _ = divergence(learning_rate=0.03)
    assert too_high > 0.05
    adapted, metrics = divergence(learning_rate=0.03, adaptive_learning_rate=0.01)
    assert 0.003 < adapted < 0.03
    assert metrics["charts/learning_rate"] < 0.03
    penalized, metrics = divergence(learning_rate=0.03, kl_coef=0.01, adaptive_kl=0.01)
    assert penalized < 0.5 * too_high
    assert metrics["charts/kl_coef"] > 0.1
    too_low, _ = divergence(learning_rate=1e-4)
    assert too_low < 0.001
    raised, metrics = divergence(learning_rate=1e-4, adaptive_learning_rate=0.01)
    assert raised > 5 * too_low
    assert metrics["charts/learning_rate"] > 1e-4


def test_an_adaptive_learning_rate_is_not_annealed_too() -> None:
    assert Config(adaptive_learning_rate=0.01).at(400_000).learning_rate == 2.5e-4
    assert Config().at(400_000).learning_rate < 1e-4


def test_all_ranks_adapt_their_coefficients_alike() -> None:
    def factors(world: Any) -> tuple[float, float]:
        scripts = SCRIPTS[world.rank : world.rank + 1]
        config = small_config(num_envs=2, total_steps=24 * 4, kl_coef=1.0, adaptive_kl=1e-4, adaptive_learning_rate=1e-4)
        parts = assemble(config, InProcessEnvs(scripted(scripts, first=world.rank)), world, world.rank)
        train(parts)
        return float(parts.adaptive.penalty), float(parts.adaptive.step_size)

    first, second = run_ranks(2, factors)
    assert first == second != (1.0, 1.0)


# --- advantage ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("pool", [InProcessEnvs, NextStepEnvs])
def test_clip_bootstrap_limits_the_value_at_truncations_and_rollout_ends_only(compute: str, pool: Any) -> None:
    limit = 0.05
    free, clipped = (make_parts(pool(scripted(SCRIPTS)), compute=compute, clip_bootstrap=clip) for clip in (None, limit))
    rollout = collect(free)
    evaluation = free.compute.evaluate(rollout)
    value, next_value = np.asarray(evaluation.value)[:-1, :, 0], np.array(evaluation.next_value)[..., 0]
    assert (np.abs(next_value) > limit).mean() > 0.5
    for t, n in np.ndindex(rollout.reward.shape):
        if rollout.truncated[t, n] or t == len(rollout.reward) - 1:
            next_value[t, n] = np.clip(next_value[t, n], -limit, limit)
    terminated, ended = rollout.terminated.astype(float), (rollout.terminated | rollout.truncated).astype(float)
    expected = ppo.gae(rollout.reward, value, next_value, terminated, ended, 0.9, 0.8, rollout.valid.astype(float))
    batch = ppo.advantage(clipped, collect(clipped), clipped.config.at(0))
    assert np.allclose(np.asarray(batch.advantage).reshape(expected.shape), expected, atol=1e-5)
    unlimited = ppo.advantage(free, collect(free), free.config.at(0))
    assert not np.allclose(np.asarray(unlimited.advantage).reshape(expected.shape), expected, atol=1e-2)


def test_reward_scale_multiplies_rewards_for_learning_but_not_reported_returns() -> None:
    parts = make_parts(reward_scale=0.01)
    rollout = collect(parts)
    original = rollout.reward.copy()
    assert np.allclose(parts.reward_scaler.scale(rollout, 0.9, Solo()), 0.01 * original)
    assert np.array_equal(rollout.reward, original)
    clipped = make_parts(reward_scale=0.01, clip_rewards=0.02).reward_scaler.scale(rollout, 0.9, Solo())
    assert clipped.max() == pytest.approx(0.02)
    # Dividing rewards by their standard deviation cancels a constant factor.
    plain, scaled = (make_parts(normalize_rewards=True, reward_scale=factor).reward_scaler for factor in (1.0, 0.01))
    assert np.allclose(plain.scale(rollout, 0.9, Solo()), scaled.scale(rollout, 0.9, Solo()), rtol=1e-3)
    assert float(scaled.moments.variance) == pytest.approx(1e-4 * float(plain.moments.variance), rel=1e-4)


# --- start of learning, resets, time limits -----------------------------------------------------------------------------------


def test_before_learning_starts_only_statistics_change() -> None:
    # 36 steps per iteration: two iterations begin before step 50.
    parts = make_parts(learning_starts=50, total_steps=36 * 4, normalize_observations=True, normalize_rewards=True)
    weights, counts = [], []
    update = ppo.update

    def recording_update(*arguments: Any) -> dict[str, float]:
        metrics = update(*arguments)
        weights.append(parts.parameters.values.clone())
        counts.append((int(parts.policy.preprocess.moments.count), int(parts.reward_scaler.moments.count)))
        return metrics

    before = parts.parameters.values.clone()
    ppo.update = recording_update
    try:
        session = train(parts)
    finally:
        ppo.update = update
    assert [torch.equal(weight, before) for weight in weights] == [True, True, False, False]
    assert counts == [(0, 36), (36, 72), (72, 108), (108, 144)]
    assert "losses/policy_loss" not in session.metrics[1]
    assert "losses/policy_loss" in session.metrics[2]


@pytest.mark.parametrize("pool", [InProcessEnvs, NextStepEnvs])
def test_hard_resets_begin_every_rollout_with_new_episodes(pool: Any) -> None:
    def starts(resets: str) -> tuple[list[Any], list[Any]]:
        parts = make_parts(pool(scripted(((NEVER,), (NEVER,), (NEVER,)))), resets=resets)
        parts.collector.reset(1, None)
        rollouts = []
        for iteration in range(3):
            rollout = parts.collector.collect(ppo.random_streams(parts, iteration), 10**9)
            rollouts.append((rollout.obs[0].copy(), rollout.starts[0].copy(), rollout.obs[-1].copy()))
        return [first.tolist() for first, _, _ in rollouts], [begins.tolist() for _, begins, _ in rollouts]

    # Observations are (environment, episode, step).
    hard, hard_starts = starts("hard")
    assert hard == [[[n, iteration, 0] for n in range(3)] for iteration in range(3)]
    assert hard_starts == [[True] * 3] * 3
    soft, soft_starts = starts("soft")
    assert soft == [[[n, 0, 12 * iteration] for n in range(3)] for iteration in range(3)]
    assert soft_starts == [[True] * 3, [False] * 3, [False] * 3]


def test_hard_resets_reset_the_running_return_of_the_reward_scaler() -> None:
    for resets, expected in (("hard", 2 * [sum(1 * 0.9**k for k in range(12))]), ("soft", None)):
        parts = make_parts(InProcessEnvs(scripted(((NEVER,),) * 3)), resets=resets, normalize_rewards=True)
        parts.collector.reset(1, None)
        last = []
        for iteration in range(2):
            rollout = parts.collector.collect(ppo.random_streams(parts, iteration), 10**9)
            rollout.reward[:] = 1
            parts.reward_scaler.scale(rollout, 0.9, Solo())
            last.append(parts.reward_scaler.running_return[0] / 0.9)
        if expected:
            assert last == pytest.approx(expected)
        else:
            assert last[1] > last[0] + 0.5


@pytest.mark.parametrize("vector", ["inprocess", "native", "envpool"])
def test_max_episode_steps_truncates_and_replaces_the_registered_limit(vector: str) -> None:
    environments = make_environments("CartPole-v1", num_envs=2, vector=vector, max_episode_steps=5)
    environments.reset(1)
    shape = environments.action_space.shape or ()
    action = np.zeros((2, *shape), environments.action_space.dtype)
    lengths = []
    truncated = 0
    for _ in range(20):
        step = environments.step(action)
        lengths += [episode.length for episode in step.episodes]
        truncated += int(step.truncated.sum())
    environments.close()
    assert set(lengths) == {5}
    assert truncated == len(lengths) >= 4


def test_max_episode_steps_can_be_longer_than_the_registered_limit() -> None:
    environments = make_environments("Pendulum-v1", num_envs=1, vector="inprocess", max_episode_steps=250)
    environments.reset(1)
    lengths = [e.length for _ in range(250) for e in environments.step(np.zeros((1, 1), np.float32)).episodes]
    environments.close()
    assert lengths == [250]


def endless() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1").unwrapped


def test_max_episode_steps_limits_custom_environments() -> None:
    environments = make_environments(endless, num_envs=1, max_episode_steps=4)
    environments.reset(1)
    truncated = [bool(environments.step(np.zeros(1, np.int64)).truncated[0]) for _ in range(8)]
    assert truncated == [False, False, False, True] * 2
    environments.close()


def test_torch_deterministic_applies_during_a_run_and_not_after_it() -> None:
    assert not torch.are_deterministic_algorithms_enabled()
    policy = make_parts().policy
    with arithmetic(Config(torch_deterministic=True), policy):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    with arithmetic(Config(), policy):
        assert not torch.are_deterministic_algorithms_enabled()


# --- networks -----------------------------------------------------------------------------------------------------------------


def test_a_shared_trunk_is_computed_once_and_learns_from_both() -> None:
    parts, before, _ = updated(trunk="shared")
    policy = parts.policy
    assert policy.critic is None
    assert changed(parts, before) == (True, True)
    calls = []
    policy.actor.register_forward_hook(lambda *_: calls.append(1))
    obs = torch.randn((5, 3), generator=torch.Generator().manual_seed(0))
    _, value, _ = policy(obs, (), None)
    assert len(calls) == 1
    policy.zero_grad(set_to_none=True)
    value.sum().backward()
    assert all(parameter.grad is not None for parameter in policy.actor.parameters())
    assert torch.equal(policy.values(policy.preprocess(obs), (), None), value)


@pytest.mark.parametrize("name", ["tanh", "relu", "elu", "gelu", "silu"])
def test_activations_are_those_of_torch(name: str) -> None:
    policy = make_parts(activation=name).policy
    obs = torch.randn((5, 3), generator=torch.Generator().manual_seed(0))
    function = {"tanh": torch.tanh}.get(name) or getattr(torch.nn.functional, name)
    layer = policy.actor.layers[0]
    assert torch.allclose(policy.actor(obs), function(obs @ layer.weight.T + layer.bias))


def test_hidden_sizes_are_the_widths_of_the_layers() -> None:
    shapes = [tuple(layer.weight.shape) for layer in make_parts(hidden_sizes=(5, 7, 2)).policy.actor.layers]
    assert shapes == [(5, 3), (7, 5), (2, 7)]


@pytest.mark.parametrize("distribution", ["clip", "tanh"])
@pytest.mark.parametrize("std", ["independent", "state", "fixed"])
def test_std_chooses_whether_standard_deviations_depend_on_the_state_and_learn(std: str, distribution: str) -> None:
    settings = {"std": std, "log_std_init": -0.5, "action_distribution": distribution, "entropy_coef": 0.1, "compute": "autograd"}
    parts = assemble(small_config(**settings), InProcessEnvs(scripted(SCRIPTS, BOX)))
    obs = torch.randn((50, 3), generator=torch.Generator().manual_seed(0))
    start = parts.policy(obs, (), None)[0].log_std.detach().expand(50, 2).clone()
    assert (start + 0.5).abs().max() < 0.2  # the network's initial outputs are small
    train(parts)
    log_std = parts.policy(obs, (), None)[0].log_std.detach().expand(50, 2)
    assert (log_std.std(0).max() > 1e-4) == (std == "state")
    assert torch.equal(log_std, start) == (std == "fixed")


# --- combinations -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"accumulate": 5}, "--accumulate 5 does not divide the minibatch of 128 steps; use 4"),
        ({"trunk": "shared", "value_epochs": 3}, "--value-epochs needs a separate value network"),
        ({"trunk": "shared", "value_learning_rate": 0.1}, "--value-learning-rate needs"),
        ({"trunk": "shared", "critic_keys": ("a",)}, "--critic-keys needs"),
        ({"encoder": "a:b", "policy": "a:b", "value": "a:b"}, "--encoder has no effect"),
        ({"policy_kwargs": {"a": 1}}, "--policy-kwargs are arguments for --policy"),
        ({"action_distribution": "beta", "std": "state"}, "Beta distribution has no standard deviation"),
        ({"adaptive_kl": 0.01}, "--kl-coef"),
        ({"learning_starts": 600_000}, "leaves none of the 500224 steps to learn in"),
        ({"optimizer": "lion"}, "--optimizer is 'lion', but must be one of adam, adamw, sgd, rmsprop"),
        ({"value_optimizer": "lion"}, "must be one of adam, adamw, sgd, rmsprop, off"),
        ({"reward_scale": 0.0}, "--reward-scale is 0.0, but must be greater than 0"),
    ],
)
def test_settings_that_exclude_each_other_raise_an_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ProxRLError, match=re.escape(message)):
        Config(**settings).validate()


def test_all_metrics_are_finite_with_many_settings_on() -> None:
    settings = {"value_epochs": 3, "kl_coef": 1.0, "adaptive_kl": 0.01, "adaptive_learning_rate": 0.01, "accumulate": 2}
    session = train(make_parts(**settings, clip=None, clip_bootstrap=1.0, resets="hard", weight_decay=0.01))
    assert all(math.isfinite(value) for metrics in session.metrics for value in metrics.values())


def test_compile_compiles_the_networks_and_is_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda network: compiled.append(network))
    policy = make_parts(compile=True).policy
    assert compiled == [policy.actor, policy.critic]
    make_parts(compute="autograd")
    assert len(compiled) == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiled_networks_learn_the_same() -> None:
    plain, compiled = (updated(compute="autograd", compile=on)[0].parameters.values for on in (False, True))
    assert torch.allclose(plain, compiled, atol=1e-4)
