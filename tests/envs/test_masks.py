"""Masks in every form, errors for wrong ones, and forbidden actions, which are never sampled and get no gradient."""

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
    # A row for each entry, or one row for all.
    (spaces.MultiDiscrete([2, 3]), (bits(1, 0), bits(0, 1, 1)), [1, 0, 0, 1, 1]),
    (spaces.MultiDiscrete([2, 3]), [[1, 0], [0, 1, 1]], [1, 0, 0, 1, 1]),
    (spaces.MultiDiscrete([2, 3]), bits(1, 0, 0, 1, 1), [1, 0, 0, 1, 1]),
    (spaces.MultiDiscrete([2, 3]), [1, 0, 0, 1, 1], [1, 0, 0, 1, 1]),
    (spaces.MultiDiscrete([2, 3]), None, [1] * 5),
    (TABLE, ((bits(1, 0), bits(0, 1, 1)), (bits(1), bits(0, 1))), [1, 0, 0, 1, 1, 1, 0, 1]),
    (TABLE, bits(1, 0, 0, 1, 1, 1, 0, 1), [1, 0, 0, 1, 1, 1, 0, 1]),
    (TABLE, None, [1] * 8),
    # Entries of equal size may be one array.
    (spaces.MultiDiscrete([[2, 2]]), (np.array([[1, 0], [0, 1]]),), [1, 0, 0, 1]),
    # 0 and 1 fix a bit, 2 leaves it free; or two bits, whether 0 and whether 1 is allowed.
    (spaces.MultiBinary(3), bits(0, 1, 2), [1, 0, 0, 1, 1, 1]),
    (spaces.MultiBinary(3), bits(1, 0, 0, 1, 1, 1), [1, 0, 0, 1, 1, 1]),
    (spaces.MultiBinary(3), np.array([[1, 0], [0, 1], [1, 1]]), [1, 0, 0, 1, 1, 1]),
    (spaces.MultiBinary((2, 2)), np.array([[0, 1], [2, 0]]), [1, 0, 0, 1, 1, 1, 1, 0]),
    (spaces.MultiBinary(3), None, [1] * 6),
    # In the order of the space, not of the mask; None for leaves without choices, or to allow everything.
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
def test_every_form_gives_the_same_row_of_bits(space: gymnasium.Space, mask: Any, expected: list[int]) -> None:
    row = flatten_mask(space, mask)
    assert row.tolist() == expected
    assert row.dtype == np.int8
    assert total_choices(space) == len(expected)


def gymnasium_mask(space: gymnasium.Space, rng: np.random.Generator) -> Any:
    """Return a random mask in the form of `space.sample`, with some parts None."""
    if isinstance(space, spaces.Dict):
        return {key: gymnasium_mask(part, rng) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(gymnasium_mask(part, rng) for part in space)
    if isinstance(space, spaces.Box) or rng.random() < 0.1:
        return None
    if isinstance(space, spaces.Discrete):
        return random_bits(int(space.n), rng)
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(0, 3, space.shape).astype(np.int8)
    assert isinstance(space, spaces.MultiDiscrete)
    if space.nvec.ndim == 1:
        return tuple(random_bits(int(size), rng) for size in space.nvec)
    return tuple(tuple(random_bits(int(size), rng) for size in row) for row in space.nvec)


def random_bits(size: int, rng: np.random.Generator) -> Any:
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
def test_bits_allow_exactly_the_samples_of_gymnasium(space: gymnasium.Space, seed: int) -> None:
    """No sample is forbidden, and together the samples use everything that is allowed."""
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
        # The right total in the wrong entries.
        (spaces.MultiDiscrete([2, 3]), (bits(1, 0, 0), bits(1, 1)), r"shape \(3,\), but must hold 2 bits"),
        (spaces.MultiDiscrete([2, 3]), (bits(1, 0),), "1 parts, but .* has 2 entries"),
        (spaces.MultiDiscrete([2, 3]), (bits(1, 0), None), "must hold 3 bits"),
        (TABLE, (bits(1, 0), bits(0, 1, 1)), "2 parts, but .* has 4 entries"),
        (spaces.MultiBinary(3), bits(0, 1), "0 .must be 0., 1 .must be 1. or 2 .free. for every bit"),
        (spaces.MultiBinary(3), bits(0, 1, 3), r"the mask of MultiBinary\(3\) must hold"),
        # True is ambiguous: "may be 1" or "must be 1".
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
def test_a_mask_that_does_not_fit_is_an_error(space: gymnasium.Space, mask: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        flatten_mask(space, mask)


# --- nothing allowed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "space", [spaces.Discrete(3, start=2), spaces.MultiDiscrete([2, 3, 1]), TABLE, spaces.MultiBinary((2, 2)), MIXED]
)
def test_the_guard_names_the_environment_that_has_nothing_to_choose(space: gymnasium.Space) -> None:
    """For every part of the action; masks with one allowed choice for each part pass."""
    total, sizes = total_choices(space), group_sizes(space)
    assert sum(sizes) == total
    guard = Guard(Masked(spaces.Box(-1, 1, (2,)), total), space)
    least = random_mask(space, np.random.default_rng(0), 50, allowed=0.0)
    assert least.sum(1).tolist() == [len(sizes)] * 50
    guard.check({"observation": None, MASK: least})
    start = 0
    for size in sizes:
        for row in (0, 7, 49):
            empty = least.copy()
            empty[row, start : start + size] = 0
            with pytest.raises(ProxRLError, match=f"^the action mask of environment {row} allows no action; ") as caught:
                guard.check({"observation": None, MASK: empty})
            assert "\n" not in str(caught.value)
            with pytest.raises(ProxRLError, match=f"environment {row + 100} allows no action"):
                guard.check({"observation": None, MASK: empty}, first_env=100)
        start += size


def test_the_error_is_one_line_even_if_the_space_prints_as_several() -> None:
    assert "\n" in str(TABLE)
    with pytest.raises(ProxRLError) as caught:
        Guard(Masked(spaces.Box(-1, 1, (2,)), 4), TABLE)
    assert str(caught.value) == "masks have 4 bits, but MultiDiscrete([[2 3] [1 2]], start=[[ 5  0] [ 0 -1]]) has 8 choices"


def test_the_guard_accepts_observations_without_masks_and_rejects_masks_of_the_wrong_size() -> None:
    Guard(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)).check(np.zeros((4, 2)))
    with pytest.raises(ProxRLError, match=r"masks have 4 bits, but Discrete\(3\) has 3 choices"):
        Guard(Masked(spaces.Box(-1, 1, (2,)), 4), spaces.Discrete(3))


# --- forbidden actions ----------------------------------------------------------------------------------------------------

ACTIONS, SAMPLES, CHUNK = 1400, 1_000_000, 1000


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one thread: several are slower if other processes use the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_no_forbidden_action_in_a_million_samples_of_1400_actions() -> None:
    """In float32, by torch and by NumPy, with logits so large that without masks forbidden actions would mostly be sampled.

    Random numbers are drawn once and read from a new offset for every chunk, since drawing them would take most of the time.
    """
    rng = np.random.default_rng(0)
    noises = CategoricalHead(spaces.Discrete(ACTIONS)).noise(rng, CHUNK + 100).ravel()
    uniform = rng.random(len(noises), np.float32)
    spread = uniform[::-1] * np.float32(100) - np.float32(50)

    def random_slice(numbers: Any) -> Any:
        start = rng.integers(0, 100 * ACTIONS)
        return numbers[start : start + CHUNK * ACTIONS].reshape(CHUNK, ACTIONS)

    by_numpy, rows = _Categorical(), np.arange(CHUNK)
    single_rows = invalid = count = 0
    for chunk in range(SAMPLES // (4 * CHUNK)):
        fraction = 10.0 ** rng.uniform(-4, 0, (CHUNK, 1)).astype(np.float32)  # from a single allowed action to nearly all
        allowed = random_slice(uniform) < fraction
        allowed[rows, rng.integers(0, ACTIONS, CHUNK)] = True
        logits = np.where(allowed, np.float32(-50), np.float32(50)) if chunk % 4 == 0 else random_slice(spread)
        distribution = Categorical(torch.from_numpy(logits), torch.from_numpy(allowed))
        assert distribution.log_probs.dtype == torch.float32
        for noise in (random_slice(noises), random_slice(noises)):
            for taken in (distribution.sample(torch.from_numpy(noise)).numpy(), by_numpy.act(logits, noise, allowed)):
                invalid += int((~allowed[rows, taken]).sum())
                count += CHUNK
        single_rows += int((allowed.sum(1) == 1).sum())
    assert count == SAMPLES
    assert single_rows > 10_000
    assert invalid == 0


DRAWS = 40_000


@pytest.mark.parametrize("by", ["torch", "numpy"])
def test_frequencies_with_a_mask_are_the_renormalized_probabilities(by: str) -> None:
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
    assert ((counts[allowed] - expected) ** 2 / expected).sum() < 16.3  # the 99.9% quantile for 3 degrees of freedom


def test_frequencies_of_masked_bits_and_entries() -> None:
    rng = np.random.default_rng(2)
    binary = BernoulliHead(spaces.MultiBinary(3))
    logits = torch.tensor([[1.0, 1.0, -1.0]]).expand(DRAWS, -1)
    mask = torch.tensor([[1, 1, 1, 0, 0, 1]]).bool().expand(DRAWS, -1)  # free, must be 0, must be 1
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


DISTRIBUTIONS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Tensor, Tensor, Tensor]] = {
    # The distribution, logits, mask, and an action for each row.
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


def relevant_logits(kind: str, mask: Tensor) -> Tensor:
    """Return which logits have an effect: those of allowed choices with an allowed alternative."""
    if kind == "MultiBinary":
        return mask.reshape(2, 3, 2).all(-1)
    groups = [4] if kind == "Discrete" else [2, 3]
    return torch.cat([part & (part.sum(-1, keepdim=True) > 1) for part in torch.split(mask, groups, -1)], -1)


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_the_gradient_of_forbidden_logits_is_exactly_zero(kind: str) -> None:
    make, initial_logits, mask, action = DISTRIBUTIONS[kind]
    relevant = relevant_logits(kind, mask)
    for output in ("log_prob", "entropy"):
        logits = initial_logits.clone().requires_grad_()
        distribution = make(logits, mask)
        value = distribution.log_prob(action) if output == "log_prob" else distribution.entropy()
        assert torch.isfinite(value).all()
        value.sum().backward()
        assert logits.grad is not None
        assert torch.isfinite(logits.grad).all()
        assert (logits.grad[~relevant] == 0).all(), output
        assert (logits.grad[relevant].abs() > 1e-3).all(), output


def test_numpy_gradients_equal_those_of_autograd_with_a_mask() -> None:
    _, initial_logits, mask, action = DISTRIBUTIONS["Discrete"]
    logits = initial_logits.clone().requires_grad_()
    distribution = Categorical(logits, mask)
    slopes = torch.tensor([[0.7, -1.3], [0.4, 2.0]])
    ((slopes[0] * distribution.log_prob(action)).sum() + (slopes[1] * distribution.entropy()).sum()).backward()
    by_hand = _Categorical()
    log_prob, entropy = by_hand.forward(initial_logits.numpy(), action.numpy(), mask.numpy())
    gradient = by_hand.backward(*slopes.numpy())
    assert np.allclose(log_prob, distribution.log_prob(action).detach(), atol=1e-6)
    assert np.allclose(entropy, distribution.entropy().detach(), atol=1e-6)
    assert np.allclose(gradient, logits.grad, atol=1e-6)
    assert (gradient[~mask.numpy()] == 0).all()


def test_leaves_are_counted_in_the_order_of_the_space() -> None:
    """Test the helpers of these tests: the order is that of the flat row."""
    action = {"b": (2, np.zeros(2, np.float32)), "a": np.array([1, 0]), "bits": np.array([0, 1], np.int8)}
    assert [type(leaf).__name__ for leaf, _ in leaves_of(MIXED)] == ["Discrete", "Box", "MultiDiscrete", "MultiBinary"]
    assert taken_bits(MIXED, action) == [2, 4, 5, 7, 10]
