"""The transformer memory: sequences compute what single steps do, and attention ends where the window or the episode begins.

What all kinds of memory have in common (ratios, ranks, resuming) is in tests/test_recurrent.py.
"""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from harness import assemble, train
from proxrl.config import Config
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.policy import transformer
from proxrl.policy.transformer import TransformerMemory, by_key

WIDTH = 6


def make_memory(window: int, layers: int = 1) -> TransformerMemory:
    """Return a memory whose weights are all random, so that everything has an influence."""
    torch.manual_seed(0)
    memory = TransformerMemory(5, WIDTH, layers, 2, window)
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return memory


def one_by_one(memory: TransformerMemory, features: Any, starts: Any, state: Any, reset: bool) -> tuple[torch.Tensor, Any]:
    """Run one environment step by step. An episode begins by its mark in `starts` or, if `reset`, with the initial state."""
    outputs = []
    for row, start in zip(features, starts, strict=True):
        if reset:
            output, state = memory(row[None], memory.initial_state(1) if start else state, None)
        else:
            output, state = memory(row[None], state, start[None])
        outputs.append(output[0])
    return torch.stack(outputs), state


def lived(memory: TransformerMemory, steps: tuple[int, ...]) -> Any:
    """Return the states of sequences after so many steps of an episode."""
    states = [memory.initial_state(1) for _ in steps]
    with torch.no_grad():
        for n, count in enumerate(steps):
            for _ in range(count):
                states[n] = memory(torch.randn(1, 5), states[n], None)[1]
    return tuple(torch.cat(parts) for parts in zip(*states, strict=True))


@pytest.mark.parametrize(("window", "layers", "block"), [(1, 1, 4), (3, 2, 4), (3, 1, 128), (20, 2, 128)])
def test_sequences_equal_single_steps(window: int, layers: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs, states after them, and gradients; with episodes that begin inside, and sequences longer than the window."""
    monkeypatch.setattr(transformer, "BLOCK", block)
    memory = make_memory(window, layers)
    state = lived(memory, (2, 0, 9))
    starts = torch.zeros(3, 9, dtype=torch.bool)
    starts[0, [0, 4, 5]] = starts[1, 8] = starts[1, 2] = True
    features, weights = torch.randn(3, 9, 5), torch.randn(3, 9, WIDTH)
    outputs, after = memory(features.view(27, 5), state, starts.view(27))
    (outputs.view(3, 9, WIDTH) * weights).sum().backward()
    gradients = [parameter.grad.clone() for parameter in memory.parameters()]
    memory.zero_grad()
    for n in range(3):
        for reset in (True, False):
            expected, last = one_by_one(memory, features[n], starts[n], tuple(part[n : n + 1] for part in state), reset)
            assert torch.allclose(outputs.view(3, 9, WIDTH)[n], expected, atol=1e-5)
            known = window - int(last[1])  # what is older than the episode may be anything
            assert float(after[1][n]) == float(last[1])
            assert torch.allclose(after[0][n, :, known:], last[0][0, :, known:], atol=1e-5)
        (expected * weights[n]).sum().backward()
    for parameter, gradient in zip(memory.parameters(), gradients, strict=True):
        assert torch.isfinite(gradient).all()
        assert torch.allclose(parameter.grad, gradient, atol=1e-4)
        assert gradient.any()


def influenced(memory: TransformerMemory, starts: torch.Tensor, step: int) -> list[int]:
    """Return the steps of one sequence whose outputs depend on the features of `step`."""
    features = torch.randn(len(starts), 5, requires_grad=True)
    outputs = memory(features, memory.initial_state(1), starts)[0]
    gradients = [torch.autograd.grad(output.sum(), features, retain_graph=True)[0][step] for output in outputs]
    return [t for t, gradient in enumerate(gradients) if gradient.any()]


@pytest.mark.parametrize("block", [128, 4])
def test_a_step_has_an_influence_within_the_window_and_its_episode(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "BLOCK", block)
    starts = torch.zeros(12, dtype=torch.bool)
    assert influenced(make_memory(3), starts, 2) == [2, 3, 4, 5]
    assert influenced(make_memory(3, layers=2), starts, 2) == [2, 3, 4, 5, 6, 7, 8]  # a layer further back each
    starts[[4, 10]] = True
    assert influenced(make_memory(3), starts, 2) == [2, 3]
    assert influenced(make_memory(3), starts, 4) == [4, 5, 6, 7]
    assert influenced(make_memory(3), starts, 9) == [9]
    assert influenced(make_memory(20, layers=2), starts, 4) == [4, 5, 6, 7, 8, 9]


def test_of_the_state_only_steps_of_the_episode_have_an_influence() -> None:
    memory = make_memory(4)
    inputs = torch.randn(1, 1, 4, WIDTH, requires_grad=True)
    features = torch.randn(3, 5)
    for starts, attended in (([False] * 3, [[2, 3]] * 3), ([False, True, False], [[2, 3], [], []]), ([True] * 3, [[]] * 3)):
        outputs = memory(features, (inputs, torch.tensor([[2.0]])), torch.tensor(starts))[0]
        for output, slots in zip(outputs, attended, strict=True):
            gradient = torch.autograd.grad(output.sum(), inputs, retain_graph=True)[0][0, 0]
            assert gradient.any(1).nonzero()[:, 0].tolist() == slots
    # In a longer sequence, the older of the two leaves the window first.
    outputs = memory(torch.randn(6, 5), (inputs, torch.tensor([[2.0]])), torch.zeros(6, dtype=torch.bool))[0]
    reached = [torch.autograd.grad(output.sum(), inputs, retain_graph=True)[0][0, 0].any(1).sum() for output in outputs]
    assert reached == [2, 2, 2, 1, 0, 0]


def test_positions_are_relative_and_matter() -> None:
    """The same episode at another place of the sequence has the same outputs; in another order it has not."""
    memory = make_memory(8)
    features = torch.randn(5, 5)
    starts = torch.zeros(9, dtype=torch.bool)
    starts[4] = True
    late = memory(torch.cat([torch.randn(4, 5), features]), memory.initial_state(1), starts)[0][4:]
    early = memory(features, memory.initial_state(1), torch.zeros(5, dtype=torch.bool))[0]
    assert torch.allclose(late, early, atol=1e-5)
    swapped = memory(features[[1, 0, 2, 3, 4]], memory.initial_state(1), torch.zeros(5, dtype=torch.bool))[0]
    assert (swapped[4] - early[4]).abs().max() > 1e-4


def test_scores_by_distance_are_moved_to_their_keys() -> None:
    scores = torch.tensor([[12.0, 11.0, 10.0], [22.0, 21.0, 20.0]])  # a window of two steps, distances 2, 1 and 0
    assert by_key(scores).tolist() == [[12, 11, 10, 0], [0, 22, 21, 20]]


def test_the_initial_memory_is_close_to_its_input() -> None:
    """Gates let about an eighth through, so early learning is that of a feed-forward policy."""
    torch.manual_seed(1)
    memory = TransformerMemory(64, 64, 2, 4, 16)
    features = torch.randn(40, 64)
    with torch.no_grad():
        outputs, projected = (
            memory(features, memory.initial_state(1), torch.zeros(40, dtype=torch.bool))[0],
            memory.project(features),
        )
    assert (outputs - projected).norm() < 0.6 * projected.norm()
    assert torch.nn.functional.cosine_similarity(outputs, projected).min() > 0.8


def test_no_sequences_and_lower_precision() -> None:
    memory = make_memory(4)
    outputs, _ = memory(torch.zeros(0, 5), memory.initial_state(0), torch.zeros(0, dtype=torch.bool))
    assert outputs.shape == (0, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        state = memory(torch.randn(8, 5), memory.initial_state(2), torch.zeros(8, dtype=torch.bool))[1]
    assert [part.dtype for part in state] == [torch.float32] * 2


def test_an_exported_program_takes_any_number_of_rows_and_carries_the_state() -> None:
    memory = make_memory(3, layers=2).requires_grad_(False)

    class OneStep(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory = memory

        def forward(self, features: Any, inputs: Any, count: Any) -> Any:
            return self.memory(features, (inputs, count), None)

    rows = {0: torch.export.Dim("rows", min=1)}
    program = torch.export.export(OneStep(), (torch.randn(4, 5), *memory.initial_state(4)), dynamic_shapes=(rows,) * 3).module()
    state = exported = memory.initial_state(2)
    for _ in range(6):
        features = torch.randn(2, 5)
        output, state = memory(features, state, None)
        exported_output, exported = program(features, *exported)
        assert torch.allclose(exported_output, output, atol=1e-6)
    assert state[1].tolist() == [[3.0], [3.0]]


# --- learning -----------------------------------------------------------------------------------------------------------------


class Recall(gymnasium.Env):
    """Shows a cue in the first step. It is recalled by the action of the last one, four steps later."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.time, self.cue = 0, int(self.np_random.integers(2))
        return np.array([2 * self.cue - 1, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        over = self.time == 5
        return np.array([0, self.time == 4], np.float32), float(over and action == self.cue), over, False, {}


@pytest.mark.parametrize("memory", ["transformer", None])
def test_a_cue_is_recalled_with_memory_and_not_without(memory: Any) -> None:
    settings = {"num_envs": 8, "rollout_steps": 40, "num_minibatches": 2, "epochs": 4, "hidden_sizes": (16,), "trunk": "shared"}
    schedule = {"total_steps": 6400, "learning_rate": 5e-3, "gamma": 0.9, "entropy_coef": 0.01}
    sizes = {"memory_size": 16, "memory_heads": 2, "memory_window": 4}
    config = Config(**settings, **schedule, **sizes, memory=memory).validate()
    episodes = train(assemble(config, InProcessEnvs([Recall] * 8))).episodes[-200:]
    share = np.mean([episode.total_reward for episode in episodes])
    assert share > 0.95 if memory else abs(share - 0.5) < 0.15
