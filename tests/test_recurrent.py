"""Policies with a memory: what the update computes is what acting computed (trap 19), and sequences stay whole."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from harness import NEVER, LostEnvs, NextStepEnvs, RecordingSession, Scripted, assemble, collect, run_ranks, scripted, train
from proxrl import ppo
from proxrl.build import Parts, trainee
from proxrl.common.tree import tree_map
from proxrl.config import Config
from proxrl.engine.autograd import TorchCompute
from proxrl.engine.descent import microbatches
from proxrl.engine.numpy_recurrent import NumpyRecurrentCompute
from proxrl.engine.threads import arithmetic
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.errors import ProxRLError
from proxrl.policy.memory import RecurrentMemory, segment_groups
from proxrl.types import Batch

BOX = spaces.Box(-0.5, 0.5, (2,), np.float32)
# Episodes that begin inside of sequences, at other times in each environment; one of a single step; one that outlasts everything.
SCRIPTS = (
    ((3, "terminated"), (2, "truncated")),
    ((4, "truncated"), (1, "terminated"), (1, "truncated")),
    (NEVER,),
    ((7, "terminated"),),
)


def recurrent_config(**changes: Any) -> Config:
    settings = {"num_envs": 4, "rollout_steps": 12, "num_minibatches": 2, "epochs": 2, "hidden_sizes": (8,), "gamma": 0.9}
    memory = {"memory": "lstm", "memory_size": 6, "memory_heads": 2, "memory_window": 5, "total_steps": 144}
    return Config(**{**settings, **memory, "learning_rate": 0.01, "compute": "autograd", **changes}).validate()


def recurrent_parts(config: Config, pool: Any = InProcessEnvs, action_space: Any = None, **arguments: Any) -> Parts:
    parts = assemble(config, pool(scripted(SCRIPTS, action_space)), **arguments)
    rng = np.random.default_rng(0)
    parts.parameters.values += torch.from_numpy(rng.normal(0, 0.3, parts.parameters.values.shape).astype(np.float32))
    return parts


def one_by_one(memory: RecurrentMemory, features: torch.Tensor, starts: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
    """Run the memory of one environment step by step, with a new zero state wherever an episode starts."""
    outputs = []
    for row, start in zip(features, starts, strict=True):
        output, state = memory(row[None], memory.initial_state(1) if start else state, None)
        outputs.append(output[0])
    return torch.stack(outputs), state


# --- the memory alone ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("inside", [True, False])
def test_sequences_equal_single_steps(kind: str, layers: int, inside: bool) -> None:
    torch.manual_seed(0)
    memory = RecurrentMemory(kind, 5, 4, layers)
    starts = torch.zeros(3, 9, dtype=torch.bool)
    starts[0, 0] = True
    if inside:  # a segment of nine steps is padded apart from those of one step
        starts[0, [4, 5]] = starts[1, 8] = starts[1, 2] = True
    features, state = torch.randn(3, 9, 5), tuple(torch.randn(3, layers, 4) for _ in range(memory.size))
    outputs, after = memory(features.reshape(27, 5), state, starts.reshape(27))
    for n in range(3):
        expected, last = one_by_one(memory, features[n], starts[n], tuple(part[n : n + 1] for part in state))
        assert torch.allclose(outputs.view(3, 9, 4)[n], expected, atol=1e-6)
        assert inside or all(torch.allclose(part[n], one[0], atol=1e-6) for part, one in zip(after, last, strict=True))


def test_gradients_of_sequences_with_starts_equal_those_of_single_steps() -> None:
    torch.manual_seed(1)
    memory = RecurrentMemory("lstm", 3, 4, 1)
    starts = torch.tensor([[False, False, True, False], [True, False, False, True]])
    features, state = torch.randn(2, 4, 3), tuple(torch.randn(2, 1, 4) for _ in range(2))
    weights = torch.randn(2, 4, 4)
    (memory(features.view(8, 3), state, starts.view(8))[0].view(2, 4, 4) * weights).sum().backward()
    fused = [parameter.grad.clone() for parameter in memory.parameters()]
    memory.zero_grad()
    for n in range(2):
        (one_by_one(memory, features[n], starts[n], tuple(part[n : n + 1] for part in state))[0] * weights[n]).sum().backward()
    for parameter, gradient in zip(memory.parameters(), fused, strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-5)


def test_sequences_are_split_only_where_episodes_begin() -> None:
    starts = torch.tensor([[False, False, True, False], [False, False, False, False]])
    (group,) = segment_groups(starts.numpy().tobytes(), 4)
    assert (group.segments, group.steps) == (3, 4)  # two halves of the first sequence, and the whole second one
    assert group.rows.tolist() == [*range(8)]
    assert group.slots.tolist() == [0, 3, 1, 4, 2, 5, 8, 11]
    assert (group.first.tolist(), group.sequences.tolist()) == ([0, 2], [0, 1])


def test_padding_stays_small_if_one_episode_is_long_and_many_are_short() -> None:
    starts = np.zeros((8, 128), np.bool_)
    starts[1:] = True
    long, short = segment_groups(starts.tobytes(), 128)
    assert (long.segments, long.steps) == (1, 128)
    assert (short.segments, short.steps) == (7 * 128, 1)
    assert sorted([*long.rows, *short.rows]) == [*range(8 * 128)]


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_initial_weights_are_orthogonal_and_biases_and_state_zero(kind: str) -> None:
    memory = RecurrentMemory(kind, 4, 4, 1)
    gates = 4 if kind == "lstm" else 3
    for name, parameter in memory.named_parameters():
        if "bias" in name:
            assert not parameter.any()
        else:
            assert torch.allclose(parameter.T @ parameter, torch.eye(4), atol=1e-5), (name, gates)
    assert not any(part.any() for part in memory.initial_state(3))


# --- acting and learning agree ------------------------------------------------------------------------------------------------


def first_epoch(parts: Parts, iterations: int = 2) -> tuple[float, int]:
    """Return the largest distance of a ratio from 1 over the first epoch's minibatches, before any optimizer step, in the second
    rollout, which begins with the memory of the first; and the number of rows.
    """
    parts.collector.reset(parts.config.seed, None)
    for iteration in range(iterations):
        streams = ppo.random_streams(parts, iteration)
        rollout = parts.collector.collect(streams, 10**9)
        batch = ppo.advantage(parts, rollout, parts.config.at(0))
    worst, rows = 0.0, 0
    for minibatch in parts.minibatches.draw(batch, streams, 1):
        for part in microbatches(minibatch, parts.config.accumulate):
            outputs = parts.compute.forward(part)
            counted = part.weight > 0
            worst = max(worst, float(abs(parts.compute.library.exp(outputs.log_prob - part.log_prob) - 1)[counted].max()))
            worst = max(worst, float(abs(outputs.value - part.value)[counted].max()))
            rows += int(counted.sum())
    return worst, rows


@pytest.mark.parametrize("sequence_length", [None, 4, 1])
@pytest.mark.parametrize(
    ("kind", "trunk", "compute"),
    [
        *((kind, trunk, "autograd") for kind in ("lstm", "gru", "transformer") for trunk in ("shared", "separate")),
        *((kind, "separate", "numpy") for kind in ("lstm", "gru")),
    ],
)
@pytest.mark.parametrize("action_space", [None, BOX])
def test_ratios_and_values_of_the_first_epoch_are_those_of_acting(
    kind: str, trunk: str, compute: str, sequence_length: int | None, action_space: Any
) -> None:
    config = recurrent_config(memory=kind, trunk=trunk, compute=compute, sequence_length=sequence_length, memory_layers=2)
    worst, rows = first_epoch(recurrent_parts(config, action_space=action_space))
    assert worst < 1e-5
    assert rows == config.batch_size


@pytest.mark.parametrize("pool", [InProcessEnvs, NextStepEnvs])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("action_space", [None, BOX])
def test_numpy_and_autograd_train_alike(action_space: Any, kind: str, pool: Any) -> None:
    """From acting, over the values of true successors, to the gradients."""
    weights = {}
    for compute in ("numpy", "autograd"):
        settings = {"memory_layers": 2, "total_steps": 96, "normalize_observations": True}
        rpo_alpha = None if action_space is None else 0.3
        config = recurrent_config(memory=kind, compute=compute, rpo_alpha=rpo_alpha, **settings)
        parts = recurrent_parts(config, pool, action_space)
        assert isinstance(parts.compute, NumpyRecurrentCompute) == (compute == "numpy")
        train(parts)
        weights[compute] = parts.parameters.values.clone()
    assert torch.allclose(weights["numpy"], weights["autograd"], atol=1e-4)


def test_small_policies_with_a_memory_use_numpy() -> None:
    space = spaces.Discrete(2)
    assert isinstance(recurrent_parts(recurrent_config(compute="auto"), action_space=space).compute, NumpyRecurrentCompute)
    for changes in ({"trunk": "shared"}, {"hidden_sizes": ()}):
        parts = recurrent_parts(recurrent_config(compute="auto", **changes), action_space=space)
        assert isinstance(parts.compute, TorchCompute)


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
@pytest.mark.parametrize("pool", [NextStepEnvs, LostEnvs])
def test_ratios_are_one_in_every_kind_of_pool_and_with_microbatches(pool: Any, kind: str) -> None:
    config = recurrent_config(memory=kind, sequence_length=3, accumulate=2, normalize_observations=True)
    worst, rows = first_epoch(recurrent_parts(config, pool))
    assert worst < 1e-5
    assert rows > 0


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_ratios_are_not_one_without_starts_or_stored_states(kind: str) -> None:
    """The test above would notice a memory that misses the start of an episode, or a sequence that begins with a zero state."""
    for field in ("starts", "state"):
        parts = recurrent_parts(recurrent_config(memory=kind, sequence_length=4))
        rollout = collect(parts)
        batch = ppo.advantage(parts, rollout, parts.config.at(0))
        spoiled = torch.zeros_like(batch.starts) if field == "starts" else tuple(map(torch.zeros_like, batch.state))
        setattr(batch, field, spoiled)
        minibatches = list(parts.minibatches.draw(batch, ppo.random_streams(parts, 0), 1))
        ratios = torch.cat([parts.compute.forward(part).log_prob - part.log_prob for part in minibatches]).exp()
        assert (ratios - 1).abs().max() > 1e-3


def test_states_of_training_are_those_of_acting() -> None:
    parts = recurrent_parts(recurrent_config(sequence_length=4))
    rollout = collect(parts)
    rows, starts = torch.from_numpy(rollout.obs), torch.from_numpy(rollout.starts)
    for n in range(4):
        state: Any = parts.policy.initial_state(1)
        for t in range(12):
            if t % 4 == 0:
                assert all(
                    torch.allclose(part[t // 4, n], one[0], atol=1e-6) for part, one in zip(rollout.states, state, strict=True)
                )
            with torch.no_grad():
                state = parts.policy(rows[t, n][None], state, starts[t, n][None])[2]


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
@pytest.mark.parametrize("pool", [InProcessEnvs, NextStepEnvs])
def test_the_value_of_the_true_successor_continues_the_memory(pool: Any, kind: str) -> None:
    """At a truncation, the value of the last observation is computed with the memory of its episode, not of the next one."""
    parts = recurrent_parts(recurrent_config(memory=kind, trunk="separate"), pool)
    rollout = collect(parts)
    evaluation = parts.compute.evaluate(rollout)
    state: Any = parts.policy.initial_state(1)
    checked = 0
    for t in range(12):
        # Environment 1 truncates its first episode after four steps: its last observation is (1, 0, 4).
        obs, starts = torch.from_numpy(rollout.obs[t, 1][None]), torch.from_numpy(rollout.starts[t, 1][None])
        with torch.no_grad():
            state = parts.policy(obs, state, starts)[2]
            if rollout.truncated[t, 1]:
                last = torch.tensor([[*rollout.obs[t, 1][:2], rollout.obs[t, 1][2] + 1]])
                value = parts.policy(last, state, torch.tensor([False]))[1]
                assert float(evaluation.next_value[t, 1, 0]) == pytest.approx(float(value), abs=1e-6)
                checked += 1
    assert checked >= 2


# --- sequences ----------------------------------------------------------------------------------------------------------------


def test_minibatches_consist_of_whole_sequences_of_one_environment() -> None:
    config = recurrent_config(sequence_length=4, num_minibatches=3)
    parts = recurrent_parts(config)
    batch = ppo.advantage(parts, collect(parts), config.at(0))
    seen = []
    for minibatch in parts.minibatches.draw(batch, ppo.random_streams(parts, 0), 2):
        rows = minibatch.rows.view(-1, 4)
        assert minibatch.sequences == len(rows) == 4
        assert (rows.diff(dim=1) == config.num_envs).all()  # consecutive steps of one environment
        assert (rows[:, 0] // config.num_envs % 4 == 0).all()
        numbers = rows[:, 0] // config.num_envs // 4 * config.num_envs + rows[:, 0] % config.num_envs
        assert all(torch.equal(part, whole[numbers]) for part, whole in zip(minibatch.state, batch.state, strict=True))
        seen += rows.flatten().tolist()
    assert sorted(seen) == sorted([*range(48)] * 2)


def test_whole_rollouts_meet_others_in_every_epoch_iteration_and_seed() -> None:
    config = recurrent_config(num_envs=8, num_minibatches=2)
    assert config.steps_per_sequence == 12

    def met(world: Any, seed: int, iteration: int) -> list[list[int]]:
        """Return the environments of this rank in each minibatch of two epochs."""
        first, count = 8 // world.size * world.rank, 8 // world.size
        parts = assemble(config.replace(seed=seed), InProcessEnvs(scripted([(NEVER,)] * count), first), world, first)
        batch = ppo.advantage(parts, collect(parts), config.at(0))
        drawn = parts.minibatches.draw(batch, ppo.random_streams(parts, iteration), 2)
        return [sorted(set((first + part.rows % count).tolist())) for part in drawn]

    whole = {at: run_ranks(1, lambda world, at=at: met(world, *at))[0] for at in ((1, 0), (1, 1), (2, 0))}
    assert all(len(envs) == 4 for epochs in whole.values() for envs in epochs)
    assert len({tuple(envs) for epochs in whole.values() for envs in epochs}) > 6
    assert whole[1, 0] == run_ranks(1, lambda world: met(world, 1, 0))[0]  # addressed, so that a resumed run draws the same
    halves = run_ranks(2, lambda world: met(world, 1, 1))
    assert [sorted(one + other) for one, other in zip(*halves, strict=True)] == whole[1, 1]


def test_the_default_sequence_is_the_longest_that_fills_every_minibatch() -> None:
    assert recurrent_config(memory=None).steps_per_sequence == 1
    assert recurrent_config(num_envs=1, num_minibatches=1).steps_per_sequence == 12
    assert recurrent_config(num_envs=1, num_minibatches=4).steps_per_sequence == 3
    assert recurrent_config(num_envs=2, num_minibatches=3).steps_per_sequence == 6


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_a_short_last_rollout_is_padded_to_whole_sequences(kind: str) -> None:
    parts = recurrent_parts(recurrent_config(memory=kind, sequence_length=4), NextStepEnvs)
    parts.collector.reset(1, None)
    streams = ppo.random_streams(parts, 0)
    rollout = parts.collector.collect(streams, budget=22)
    assert rollout.steps == 22
    steps = len(rollout.reward)
    assert steps % 4
    batch = ppo.advantage(parts, rollout, parts.config.at(0))
    counted = 0
    for minibatch in parts.minibatches.draw(batch, streams, 1):
        outputs = parts.compute.forward(minibatch)
        rows = minibatch.weight > 0
        assert torch.allclose(outputs.log_prob[rows], minibatch.log_prob[rows], atol=1e-5)
        assert len(minibatch.weight) % 4 == 0
        counted += int(rows.sum())
    assert counted == 22


def test_microbatches_of_sequences_have_the_gradient_of_the_minibatch() -> None:
    gradients = []
    for accumulate in (1, 3):
        config = recurrent_config(sequence_length=4, num_minibatches=2, accumulate=accumulate)
        parts = recurrent_parts(config)
        batch = ppo.advantage(parts, collect(parts), config.at(0))
        minibatch = next(parts.minibatches.draw(batch, ppo.random_streams(parts, 0), 1))
        parts.descent.differentiate(minibatch, ppo.loss, config.at(0), config.phases(0)[0])
        gradients.append(parts.parameters.gradient.clone())
    assert torch.allclose(*gradients, atol=1e-6)
    assert gradients[0].abs().max() > 1e-3


def test_gradients_flow_through_a_sequence_and_not_beyond_it() -> None:
    """With sequences of one step, the memory's recurrent weights see stored states as data; longer ones change the gradient."""
    gradients = {}
    for length in (1, 12):
        config = recurrent_config(sequence_length=length, num_minibatches=1)
        parts = recurrent_parts(config)
        batch = ppo.advantage(parts, collect(parts), config.at(0))
        (minibatch,) = parts.minibatches.draw(batch, ppo.random_streams(parts, 0), 1)
        parts.descent.differentiate(minibatch, ppo.loss, config.at(0), config.phases(0)[0])
        gradients[length] = parts.parameters.gradient.clone()
    assert (gradients[1] - gradients[12]).abs().max() > 1e-4


# --- whole trainings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "sequence_length"), [("lstm", None), ("lstm", 4), ("transformer", 4)])
@pytest.mark.parametrize("pool", [InProcessEnvs, NextStepEnvs])
def test_two_ranks_learn_what_one_does(pool: Any, kind: str, sequence_length: int | None) -> None:
    config = recurrent_config(memory=kind, sequence_length=sequence_length, normalize_observations=True)

    def trained(world: Any) -> Any:
        first, count = (0, 4) if world.size == 1 else (2 * world.rank, 2)
        makers = scripted(SCRIPTS)[first : first + count]
        parts = assemble(config, pool(makers, first), world, first)
        train(parts)
        return parts.parameters.values.clone()

    (alone,) = run_ranks(1, trained)
    two = run_ranks(2, trained)
    assert torch.equal(*two)
    assert torch.allclose(alone, two[0], atol=1e-5)


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_a_resumed_run_learns_what_an_unbroken_one_does(kind: str) -> None:
    """Trained to the end, or stopped and continued in new parts: the same weights, because episodes end with rollouts."""
    config = recurrent_config(memory=kind, sequence_length=6)
    scripts = [((4, "truncated"), (8, "terminated"))] * 4

    def parts_of(begun: int = 0) -> Parts:
        envs = [Scripted(n, script) for n, script in enumerate(scripts)]
        for env in envs:
            env.episode += begun  # it counts its own episodes
        return assemble(config, InProcessEnvs([lambda env=env: env for env in envs]))

    whole, half, rest = parts_of(), parts_of(), parts_of(begun=2)
    with arithmetic(config):  # as in a run: until threads are set, sums may come in another order
        assert train(whole).iteration == 3
        first = train(half, iterations=1)
        for name, tensor in trainee(rest).tensors().items():
            tensor.copy_(trainee(half).tensors()[name])
        session = RecordingSession(rest)
        session.step, session.iteration, session.episode_counts = first.step, first.iteration, [2] * 4
        ppo.train(rest, session)  # type: ignore[arg-type]
    for name, tensor in trainee(whole).tensors().items():
        assert torch.equal(tensor, trainee(rest).tensors()[name]), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_length": 5}, "--sequence-length 5 does not divide --rollout-steps 12; use 4 or 6"),
        ({"sequence_length": 4, "resets": "hard"}, "--sequence-length with --resets hard"),
        ({"sequence_length": 12, "num_minibatches": 6}, "gives 4 sequences per batch for --num-minibatches 6; use 6"),
        ({"accumulate": 4}, "--accumulate 4 splits minibatches between sequences, but each has 2 of 12 steps; use a shorter"),
        ({"policy": "a:b"}, "--policy replaces the whole network"),
        ({"memory": "rnn"}, "--memory is 'rnn', but must be one of lstm, gru, transformer"),
        ({"memory": "transformer", "memory_heads": 4}, "--memory-heads 4 does not divide --memory-size 6; use 2 or 3 heads"),
    ],
)
def test_settings_that_no_memory_can_have(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ProxRLError, match=message.replace("(", r"\(")):
        recurrent_config(**changes)


def test_an_empty_share_of_a_minibatch_has_no_gradient_if_all_but_the_memory_is_frozen() -> None:
    config = recurrent_config(freeze=("head", "value"), sequence_length=4)
    parts = recurrent_parts(config)
    batch = ppo.advantage(parts, collect(parts), config.at(0))
    minibatch = next(parts.minibatches.draw(batch, ppo.random_streams(parts, 0), 1))
    empty = {name: tree_map(lambda leaf: leaf[:0], column) for name, column in vars(minibatch).items()}
    parts.descent.differentiate(Batch(**empty), ppo.loss, config.at(0), config.phases(0)[0])
    assert not parts.parameters.gradient.any()
