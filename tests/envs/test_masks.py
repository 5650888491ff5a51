"""Masks in every form they come in, what is refused, and that what is forbidden is never taken nor learnt from."""

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from any_space import SEEDS, action_spaces, group_sizes, leaves_of, random_mask, taken_bits
from proxrl.engine.numpy_mlp import _Categorical
from proxrl.envs.masks import MASK, Guard, flatten_mask, total_choices
from proxrl.envs.spaces import Masked
from proxrl.errors import ProxRLError
from proxrl.policy.distributions import Bernoulli, Categorical, MultiCategorical
from proxrl.policy.heads import BernoulliHead, CategoricalHead, MultiCategoricalHead

TABLE = spaces.MultiDiscrete([[2, 3], [1, 2]], start=[[5, 0], [0, -1]])
MIXED = spaces.Dict(
    [
        ("b", spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)])),
        ("a", spaces.MultiDiscrete([2, 2])),
        ("bits", spaces.MultiBinary(2)),
    ]
)


def bits(*values: int) -> Any:
    return np.array(values, np.int8)


# --- forms ----------------------------------------------------------------------------------------------------------------

FORMS: list[tuple[gymnasium.Space, Any, list[int]]] = [
    (spaces.Discrete(3, start=4), bits(1, 0, 1), [1, 0, 1]),
    (spaces.Discrete(3), [1, 0, 1], [1, 0, 1]),
    (spaces.Discrete(3), np.array([True, False, True]), [1, 0, 1]),
    (spaces.Discrete(3), np.array([1.0, 0.0, 1.0]), [1, 0, 1]),
    (spaces.Discrete(3), None, [1, 1, 1]),
    # Its own entries one by one, or one row.
    (spaces.MultiDiscrete([2, 3]), (bits(1, 0), bits(0, 1, 1)), [1, 0, 0, 1, 1]),
    (spaces.MultiDiscrete([2, 3]), [[1, 0], [0, 1, 1]], [1, 0, 0, 1, 1]),
    (spaces.MultiDiscrete([2, 3]), bits(1, 0, 0, 1, 1), [1, 0, 0, 1, 1]),
    (spaces.MultiDiscrete([2, 3]), [1, 0, 0, 1, 1], [1, 0, 0, 1, 1]),
    (spaces.MultiDiscrete([2, 3]), None, [1] * 5),
    (TABLE, ((bits(1, 0), bits(0, 1, 1)), (bits(1), bits(0, 1))), [1, 0, 0, 1, 1, 1, 0, 1]),
    (TABLE, bits(1, 0, 0, 1, 1, 1, 0, 1), [1, 0, 0, 1, 1, 1, 0, 1]),
    (TABLE, None, [1] * 8),
    # Entries of one size may come as one array.
    (spaces.MultiDiscrete([[2, 2]]), (np.array([[1, 0], [0, 1]]),), [1, 0, 0, 1]),
    # 0 and 1: must be that; 2: free. Or whether no, and yes, are allowed.
    (spaces.MultiBinary(3), bits(0, 1, 2), [1, 0, 0, 1, 1, 1]),
    (spaces.MultiBinary(3), bits(1, 0, 0, 1, 1, 1), [1, 0, 0, 1, 1, 1]),
    (spaces.MultiBinary(3), np.array([[1, 0], [0, 1], [1, 1]]), [1, 0, 0, 1, 1, 1]),
    (spaces.MultiBinary((2, 2)), np.array([[0, 1], [2, 0]]), [1, 0, 0, 1, 1, 1, 1, 0]),
    (spaces.MultiBinary(3), None, [1] * 6),
    # In the order of the space, whatever that of the mask; None for what has no choices, or for everything.
    (
        MIXED,
        {"a": (bits(1, 1), bits(0, 1)), "bits": bits(2, 0), "b": (bits(0, 1, 0), None)},
        [0, 1, 0, 1, 1, 0, 1, 1, 1, 1, 0],
    ),
    (MIXED, {"a": None, "bits": None, "b": (None, None)}, [1] * 11),
    (MIXED, bits(0, 1, 0, 1, 1, 0, 1, 1, 1, 1, 0), [0, 1, 0, 1, 1, 0, 1, 1, 1, 1, 0]),
    (MIXED, None, [1] * 11),
    (spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)]), [[0, 1], [1, 0]], [0, 1, 1, 0]),
    (spaces.Box(-1, 1, (2,), np.float32), None, []),
]


@pytest.mark.parametrize(("space", "mask", "expected"), FORMS)
def test_every_form_becomes_the_same_row(space: gymnasium.Space, mask: Any, expected: list[int]) -> None:
    row = flatten_mask(space, mask)
    assert row.tolist() == expected
    assert row.dtype == np.int8
    assert total_choices(space) == len(expected)


def gymnasium_mask(space: gymnasium.Space, rng: np.random.Generator) -> Any:
    """A random mask in the form that `space.sample` takes, None here and there."""
    if isinstance(space, spaces.Dict):
        return {key: gymnasium_mask(part, rng) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(gymnasium_mask(part, rng) for part in space)
    if isinstance(space, spaces.Box) or rng.random() < 0.1:
        return None
    if isinstance(space, spaces.Discrete):
        return some(int(space.n), rng)
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(0, 3, space.shape).astype(np.int8)
    assert isinstance(space, spaces.MultiDiscrete)
    if space.nvec.ndim == 1:
        return tuple(some(int(size), rng) for size in space.nvec)
    return tuple(tuple(some(int(size), rng) for size in row) for row in space.nvec)


def some(size: int, rng: np.random.Generator) -> Any:
    allowed = (rng.random(size) < 0.4).astype(np.int8)
    allowed[rng.integers(size)] = 1
    return allowed


@given(action_spaces(), SEEDS)
@settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=60,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
)
def test_what_gymnasium_samples_with_a_mask_is_what_our_bits_allow(space: gymnasium.Space, seed: int) -> None:
    """None of its samples is forbidden, and together they take everything that is allowed."""
    rng = np.random.default_rng(seed)
    space.seed(seed)
    mask = gymnasium_mask(space, rng)
    row = flatten_mask(space, mask)
    taken = np.zeros(len(row), np.bool_)
    for _ in range(60):  # of up to four choices each: one is missed in fewer than 1 of 10^7 masks
        taken[taken_bits(space, space.sample(mask))] = True
    assert taken.astype(np.int8).tolist() == row.tolist()


@pytest.mark.parametrize(
    ("space", "mask", "words"),
    [
        (spaces.Discrete(3), bits(1, 0), r"shape \(2,\), but must hold 3 bits"),
        (spaces.Discrete(3), bits(1, 0, 2), "must hold 3 bits, 1 for allowed and 0 for not"),
        (spaces.Discrete(3), np.array([0.5, 1, 0]), "must hold 3 bits"),
        (spaces.Discrete(4), np.ones((2, 2)), r"shape \(2, 2\), but must hold 4 bits"),
        (spaces.Discrete(4), 1, r"shape \(\), but must hold 4 bits"),
        (spaces.Discrete(4), "1111", r"shape \(\), but must hold 4 bits"),
        (spaces.MultiDiscrete([2, 3]), bits(1, 0, 1, 1), r"shape \(4,\), but must hold 5 bits"),
        # The right total, shared out wrongly.
        (spaces.MultiDiscrete([2, 3]), (bits(1, 0, 0), bits(1, 1)), r"shape \(3,\), but must hold 2 bits"),
        (spaces.MultiDiscrete([2, 3]), (bits(1, 0),), "1 parts, but .* has 2 entries"),
        (spaces.MultiDiscrete([2, 3]), (bits(1, 0), None), "must hold 3 bits"),
        (TABLE, (bits(1, 0), bits(0, 1, 1)), "2 parts, but .* has 4 entries"),
        (spaces.MultiBinary(3), bits(0, 1), "0 .must be 0., 1 .must be 1. or 2 .free. for every bit"),
        (spaces.MultiBinary(3), bits(0, 1, 3), r"the mask of MultiBinary\(3\) must hold"),
        # Whether True says "may be" or "must be" nobody can tell.
        (spaces.MultiBinary(3), np.array([True, True, False]), r"the mask of MultiBinary\(3\) must hold"),
        (spaces.MultiBinary(3), bits(0, 1, 2, 0, 1, 1), "must hold 6 bits"),
        (spaces.Tuple([spaces.Discrete(2)]), (bits(1, 0), bits(1, 1)), "a tuple of 1 parts, .* or one row of 2 bits"),
        (spaces.Tuple([spaces.Discrete(2)] * 2), (bits(1, 0),), "a tuple of 2 parts, .* or one row of 4 bits"),
        (spaces.Tuple([spaces.Discrete(2)] * 2), bits(1, 0, 1), "a tuple of 2 parts, .* or one row of 4 bits"),
        (spaces.Dict(x=spaces.Discrete(2)), {}, "a dict with the keys x, .* or one row of 2 bits"),
        (spaces.Dict(x=spaces.Discrete(2)), {"x": bits(1, 1), "y": None}, "a dict with the keys x, "),
        (spaces.Dict(x=spaces.Discrete(2)), [1, 1, 1], "a dict with the keys x, "),
        (
            spaces.Dict(x=spaces.Box(-1, 1, (2,)), y=spaces.Discrete(2)),
            {"x": bits(1, 1), "y": None},
            "must be None, since it has no choices",
        ),
    ],
)
def test_a_mask_that_does_not_fit_is_refused_by_its_numbers(space: gymnasium.Space, mask: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        flatten_mask(space, mask)


# --- nothing allowed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "space", [spaces.Discrete(3, start=2), spaces.MultiDiscrete([2, 3, 1]), TABLE, spaces.MultiBinary((2, 2)), MIXED]
)
def test_the_guard_names_the_environment_that_has_nothing_to_choose(space: gymnasium.Space) -> None:
    """For every single thing that is chosen; rows that leave one choice everywhere pass."""
    total, sizes = total_choices(space), group_sizes(space)
    assert sum(sizes) == total
    guard = Guard(Masked(spaces.Box(-1, 1, (2,)), total), space)
    least = random_mask(space, np.random.default_rng(0), 50, allowed=0.0)
    assert least.sum(1).tolist() == [len(sizes)] * 50
    guard.check({"observation": None, MASK: least})
    begin = 0
    for size in sizes:
        for row in (0, 7, 49):
            empty = least.copy()
            empty[row, begin : begin + size] = 0
            with pytest.raises(ProxRLError, match=f"^the action mask of environment {row} allows no action; ") as caught:
                guard.check({"observation": None, MASK: empty})
            assert "\n" not in str(caught.value)
        begin += size


def test_what_is_wrong_is_told_in_one_line_though_the_space_is_written_over_several() -> None:
    assert "\n" in str(TABLE)
    with pytest.raises(ProxRLError) as caught:
        Guard(Masked(spaces.Box(-1, 1, (2,)), 4), TABLE)
    assert str(caught.value) == "masks have 4 bits, but MultiDiscrete([[2 3] [1 2]], start=[[ 5  0] [ 0 -1]]) has 8 choices"


def test_the_guard_lets_observations_without_masks_pass_and_refuses_masks_of_another_size() -> None:
    Guard(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)).check(np.zeros((4, 2)))
    with pytest.raises(ProxRLError, match=r"masks have 4 bits, but Discrete\(3\) has 3 choices"):
        Guard(Masked(spaces.Box(-1, 1, (2,)), 4), spaces.Discrete(3))


# --- what is forbidden ----------------------------------------------------------------------------------------------------

ACTIONS, SAMPLES, CHUNK = 1400, 1_000_000, 1000


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads that wait for a core that others use cost more than they bring."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_of_a_million_samples_over_1400_actions_none_is_forbidden() -> None:
    """In float32, by torch and by numpy, with logits so far apart that the forbidden ones would nearly always win.

    Random numbers are drawn once and read from another place on for every chunk: drawing them would be most of the time.
    """
    rng = np.random.default_rng(0)
    noises = CategoricalHead(spaces.Discrete(ACTIONS)).noise(rng, CHUNK + 100).ravel()
    uniform = rng.random(len(noises), np.float32)
    spread = uniform[::-1] * np.float32(100) - np.float32(50)

    def piece(numbers: Any) -> Any:
        begin = rng.integers(0, 100 * ACTIONS)
        return numbers[begin : begin + CHUNK * ACTIONS].reshape(CHUNK, ACTIONS)

    by_numpy, rows = _Categorical(), np.arange(CHUNK)
    single_rows = invalid = count = 0
    for chunk in range(SAMPLES // (4 * CHUNK)):
        share = 10.0 ** rng.uniform(-4, 0, (CHUNK, 1)).astype(np.float32)  # from a single allowed action to nearly all
        allowed = piece(uniform) < share
        allowed[rows, rng.integers(0, ACTIONS, CHUNK)] = True
        logits = np.where(allowed, np.float32(-50), np.float32(50)) if chunk % 4 == 0 else piece(spread)
        law = Categorical(torch.from_numpy(logits), torch.from_numpy(allowed))
        assert law.log_probs.dtype == torch.float32
        for noise in (piece(noises), piece(noises)):
            for taken in (law.sample(torch.from_numpy(noise)).numpy(), by_numpy.act(logits, noise, allowed)):
                invalid += int((~allowed[rows, taken]).sum())
                count += CHUNK
        single_rows += int((allowed.sum(1) == 1).sum())
    assert count == SAMPLES
    assert single_rows > 10_000
    assert invalid == 0


DRAWS = 40_000


@pytest.mark.parametrize("by", ["torch", "numpy"])
def test_frequencies_under_a_mask_are_the_probabilities_of_what_is_left(by: str) -> None:
    weights = np.array([5.0, 100.0, 3.0, 1.0, 1000.0, 1.0])
    allowed = np.array([True, False, True, True, False, True])
    probabilities = np.where(allowed, weights, 0) / weights[allowed].sum()  # one half, 0.3, 0.1, 0.1
    head = CategoricalHead(spaces.Discrete(6))
    noise = head.noise(np.random.default_rng(1), DRAWS)
    logits = np.tile(np.log(weights).astype(np.float32), (DRAWS, 1))
    mask = np.tile(allowed, (DRAWS, 1))
    if by == "torch":
        taken = Categorical(torch.from_numpy(logits), torch.from_numpy(mask)).sample(torch.from_numpy(noise)).numpy()
    else:
        taken = _Categorical().act(logits, noise, mask)
    counts = np.bincount(taken, minlength=6)
    assert counts[~allowed].tolist() == [0, 0]
    expected = DRAWS * probabilities[allowed]
    assert ((counts[allowed] - expected) ** 2 / expected).sum() < 16.3  # 0.1 % of fair draws lie beyond, of 3 degrees of freedom


def test_frequencies_of_masked_bits_and_entries() -> None:
    rng = np.random.default_rng(2)
    binary = BernoulliHead(spaces.MultiBinary(3))
    logits = torch.tensor([[1.0, 1.0, -1.0]]).expand(DRAWS, -1)
    mask = torch.tensor([[1, 1, 1, 0, 0, 1]]).bool().expand(DRAWS, -1)  # free, must be no, must be yes
    drawn = binary(logits, mask).sample(torch.from_numpy(binary.noise(rng, DRAWS))).numpy().mean(0)
    yes = 1 / (1 + np.exp(-1))
    assert abs(drawn[0] - yes) < 4 * np.sqrt(yes * (1 - yes) / DRAWS)
    assert drawn[1:].tolist() == [0, 1]

    entries = MultiCategoricalHead(spaces.MultiDiscrete([3, 2]))
    logits = torch.log(torch.tensor([[1.0, 9.0, 3.0, 1.0, 1.0]])).expand(DRAWS, -1)
    mask = torch.tensor([[1, 0, 1, 0, 1]]).bool().expand(DRAWS, -1)
    taken = entries(logits, mask).sample(torch.from_numpy(entries.noise(rng, DRAWS))).numpy()
    assert (taken[:, 1] == 1).all()
    counts = np.bincount(taken[:, 0], minlength=3)
    assert counts[1] == 0
    assert abs(counts[2] / DRAWS - 0.75) < 4 * np.sqrt(0.75 * 0.25 / DRAWS)


LAWS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Tensor, Tensor, Tensor]] = {
    # Logits, mask, and an action of each row.
    "Discrete": (
        Categorical,
        torch.tensor([[0.5, 50.0, -1.0, -50.0], [50.0, 1.0, 2.0, 3.0]]),
        torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0]]).bool(),
        torch.tensor([2, 1]),
    ),
    "MultiDiscrete": (
        lambda logits, mask: MultiCategorical(logits, (2, 3), mask),
        torch.tensor([[50.0, 1.0, 0.3, -50.0, 0.1], [0.0, 1.0, 2.0, 3.0, 50.0]]),
        torch.tensor([[0, 1, 1, 0, 1], [1, 1, 1, 1, 0]]).bool(),
        torch.tensor([[1, 2], [0, 1]]),
    ),
    "MultiBinary": (
        Bernoulli,
        torch.tensor([[0.7, 50.0, -50.0], [1.0, -50.0, 0.2]]),
        torch.tensor([[1, 1, 1, 0, 0, 1], [1, 1, 0, 1, 1, 1]]).bool(),
        torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]),
    ),
}


def undecided(kind: str, mask: Tensor) -> Tensor:
    """The logits that matter: of what is allowed where something else is too."""
    if kind == "MultiBinary":
        return mask.reshape(2, 3, 2).all(-1)
    groups = [4] if kind == "Discrete" else [2, 3]
    return torch.cat([part & (part.sum(-1, keepdim=True) > 1) for part in torch.split(mask, groups, -1)], -1)


@pytest.mark.parametrize("kind", LAWS)
def test_forbidden_logits_get_exactly_no_gradient(kind: str) -> None:
    make, given_logits, mask, action = LAWS[kind]
    matters = undecided(kind, mask)
    for output in ("log_prob", "entropy"):
        logits = given_logits.clone().requires_grad_()
        law = make(logits, mask)
        value = law.log_prob(action) if output == "log_prob" else law.entropy()
        assert torch.isfinite(value).all()
        value.sum().backward()
        assert logits.grad is not None
        assert torch.isfinite(logits.grad).all()
        assert (logits.grad[~matters] == 0).all(), output
        assert (logits.grad[matters].abs() > 1e-3).all(), output


def test_gradients_by_hand_are_those_of_autograd_under_a_mask() -> None:
    _, given_logits, mask, action = LAWS["Discrete"]
    logits = given_logits.clone().requires_grad_()
    law = Categorical(logits, mask)
    slopes = torch.tensor([[0.7, -1.3], [0.4, 2.0]])
    ((slopes[0] * law.log_prob(action)).sum() + (slopes[1] * law.entropy()).sum()).backward()
    by_hand = _Categorical()
    log_prob, entropy = by_hand.forward(given_logits.numpy(), action.numpy(), mask.numpy())
    gradient = by_hand.backward(*slopes.numpy())
    assert np.allclose(log_prob, law.log_prob(action).detach(), atol=1e-6)
    assert np.allclose(entropy, law.entropy().detach(), atol=1e-6)
    assert np.allclose(gradient, logits.grad, atol=1e-6)
    assert (gradient[~mask.numpy()] == 0).all()


def test_leaves_are_counted_in_the_order_of_the_space() -> None:
    """That of the flat row, by the plain reading that these tests go by."""
    action = {"b": (2, np.zeros(2, np.float32)), "a": np.array([1, 0]), "bits": np.array([0, 1], np.int8)}
    assert [type(leaf).__name__ for leaf, _ in leaves_of(MIXED)] == ["Discrete", "Box", "MultiDiscrete", "MultiBinary"]
    assert taken_bits(MIXED, action) == [2, 4, 5, 7, 10]
