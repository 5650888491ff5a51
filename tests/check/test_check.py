"""`proxrl check`: for every finding an environment that has this fault and no other, and sound ones that have none."""

import json
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence

import proxrl.check.checker
from proxrl.check.checker import check
from proxrl.check.findings import ADVICE, LEVELS, Report
from proxrl.check.masked_play import Masks
from proxrl.cli import main
from proxrl.envs.masks import flatten_mask
from proxrl.errors import ProxRLError

DOCS = Path(__file__).parents[2] / "docs"


class Sound(gymnasium.Env):
    """A drunkard's walk from a random start, until the edge or the clock; the faults below override one method each."""

    observation_space: gymnasium.Space = spaces.Box(-5, 5, (2,), np.float32)
    action_space: gymnasium.Space = spaces.Discrete(2)
    limit = 40

    def begin(self) -> None:
        self.place, self.clock = self.np_random.uniform(-1, 1, 2), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.begin()
        return self.observe(), self.info()

    def step(self, action: Any) -> Any:
        self.clock += 1
        self.place = np.clip(self.place + self.push(action) * np.array([0.5, 0.3]), -4, 4)
        return self.observe(), self.reward(), *self.endings(), self.info()

    def push(self, action: Any) -> float:
        return float(2 * action - 1 + self.np_random.uniform(-0.2, 0.2))

    def observe(self) -> Any:
        return self.place.astype(np.float32)

    def reward(self) -> Any:
        return 1.0 - abs(float(self.place[0]))

    def endings(self) -> Any:
        fallen = bool(abs(self.place[0]) > 2)
        return fallen, self.clock >= self.limit and not fallen

    def info(self) -> Any:
        return {}


class BoxAction(Sound):
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def push(self, action: Any) -> float:
        return float(np.sign(np.ravel(action)[0]) + self.np_random.uniform(-0.2, 0.2))


class Nested(Sound):
    """Every kind of space that training takes, in observations and actions; the push is in the action's Tuple."""

    observation_space = spaces.Dict(
        place=spaces.Box(-5, 5, (2,), np.float32),
        rest=spaces.Tuple(
            [
                spaces.Discrete(50),
                spaces.MultiBinary(2),
                spaces.Dict(signs=spaces.MultiDiscrete([[2, 3], [4, 10]]), odd=spaces.Discrete(2, start=-1)),
            ]
        ),
    )
    action_space = spaces.Dict(
        force=spaces.Tuple([spaces.Box(-1, 1, (1, 2), np.float32), spaces.Discrete(2, start=-1)]),
        gear=spaces.MultiDiscrete([2, 3], start=[0, 1]),
        lights=spaces.MultiBinary(3),
    )

    def observe(self) -> Any:
        right, up = map(int, self.place > 0)
        return {"place": super().observe(), "rest": (self.clock, self.place > 0, self.deeper(right, up))}

    def deeper(self, right: int, up: int) -> Any:
        return {"signs": np.array([[right, 2 * up], [right + up, self.clock % 10]]), "odd": self.clock % 2 - 1}

    def push(self, action: Any) -> float:
        assert self.action_space.contains(action)
        return super().push(action["force"][1] + 1)


class Masked(Sound):
    """Raises at a forbidden action, as board games do."""

    action_space = spaces.Discrete(3, start=5)

    def allowed(self) -> Any:
        return np.array([self.place[0] > -1, self.place[0] < 1, False])

    def info(self) -> Any:
        return {"action_mask": self.allowed()}

    def push(self, action: Any) -> float:
        assert self.allowed()[action - 5]
        return super().push(action - 5)


class MaskedByKey(Masked):
    """The mask is no observation: that it is a list, and partly constant, is no matter."""

    observation_space = spaces.Dict(place=spaces.Box(-5, 5, (2,), np.float32), action_mask=spaces.Sequence(spaces.Discrete(2)))

    def observe(self) -> Any:
        return {"place": super().observe(), "action_mask": tuple(int(bit) for bit in self.allowed())}

    def info(self) -> Any:
        return {"action_mask": "not looked at where the observation has one"}


class MaskedNested(Nested):
    """In the form of `action_space.sample(mask)`; only the last of three gears, one bit fixed, one push near each edge."""

    def bits(self) -> Any:
        push = np.array([self.place[0] > -1, self.place[0] < 1], np.int8)
        gear = (np.array([1, 1], np.int8), np.array([0, 0, 1], np.int8))
        return {"force": (None, push), "gear": gear, "lights": np.array([2, 1, 0], np.int8)}

    def info(self) -> Any:
        return {"action_mask": self.bits()} if not any(self.endings()) else {}

    def push(self, action: Any) -> float:
        assert self.bits()["force"][1][action["force"][1] + 1]
        assert action["gear"][1] == 3
        assert action["lights"][1:].tolist() == [1, 0]
        return super().push(action)


class MaskedRow(MaskedNested):
    """The same as one row of bits."""

    def info(self) -> Any:
        row = [*self.bits()["force"][1], 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 0]
        return {"action_mask": np.array(row, bool)}


class UnusedMask(BoxAction):
    """Without discrete parts nothing can be masked, so training does not look."""

    def info(self) -> Any:
        return {"action_mask": np.ones(2)}


class Image(Sound):
    observation_space = spaces.Box(0, 255, (40, 40, 3), np.uint8)

    def observe(self) -> Any:
        return np.full((40, 40, 3), 100 + 20 * self.place[0], np.uint8)


SOUND = [Sound, BoxAction, Image, Nested, Masked, MaskedByKey, MaskedNested, MaskedRow, UnusedMask]
FAULTS: list[tuple[str, str, type[gymnasium.Env]]] = []


def fault(code: str, level: str, base: type[gymnasium.Env] = Sound, **replaced: Any) -> None:
    FAULTS.append((code, level, type(code, (base,), replaced)))


def raise_late(self: Any) -> float:
    if self.clock == 3:
        raise RuntimeError("the wheel came off\nand more")
    return 1.0


def leave(_: Any) -> None:
    raise SystemExit(3)


def old_reset(self: Any) -> Any:
    return Sound.reset(self)


def reused(self: Any) -> Any:
    if not hasattr(self, "buffer"):
        self.buffer = np.zeros(2, np.float32)
    self.buffer[:] = self.place
    return self.buffer


def begin_where_it_was(self: Any) -> None:
    clock = getattr(self, "clock", 0)
    Sound.begin(self)
    self.place += clock / 100


def begin_alike(self: Any) -> None:
    self.place, self.clock = np.array([0.1, 0.2]), 0


def late(value: Any, usual: Any) -> Any:
    """Only in the third step, so that a look at the first one is not enough."""
    return lambda self: value if self.clock == 3 else usual


def nested(**replaced: Any) -> Any:
    """Observations of Nested with one leaf deep inside changed."""
    return {"observe": lambda self: deep_change(Nested.observe(self), **{key: make(self) for key, make in replaced.items()})}


def deep_change(obs: Any, **replaced: Any) -> Any:
    clock, bits, deeper = obs["rest"]
    place = replaced.pop("place", obs["place"])
    return {"place": place, "rest": (replaced.pop("clock", clock), replaced.pop("bits", bits), {**deeper, **replaced})}


def nested_box(box: spaces.Space) -> Any:
    """Another Box in the action's Tuple."""
    force = spaces.Tuple([box, spaces.Discrete(2, start=-1)])
    return {"action_space": spaces.Dict(force=force, gear=spaces.Discrete(3))}


def mask_at(clock: int, change: Any) -> Any:
    """Masks of MaskedNested, changed at one time."""
    return {"info": lambda self: {"action_mask": {**self.bits(), **(change if self.clock == clock else {})}}}


PLACE = np.array([0.5, 0.5], np.float32)

fault("raises", "error", reward=raise_late)
fault("raises", "error", begin=leave)
fault("observation-structure", "error", observe=lambda self: {"place": self.place.astype(np.float32)})
fault("space-unsupported", "error", observation_space=spaces.Text(3))
fault("space-unsupported", "error", action_space=None)
fault("space-unsupported", "error", observation_space=spaces.Dict(a=spaces.Graph(spaces.Discrete(2), None)))
fault("space-unsupported", "error", observation_space=spaces.Dict(a=spaces.Tuple([spaces.Sequence(spaces.Discrete(2))])))
fault("space-unsupported", "error", action_space=spaces.Tuple([spaces.Discrete(2), spaces.OneOf([spaces.Discrete(2)])]))
fault("space-unsupported", "error", MaskedByKey, observation_space=spaces.Dict(action_mask=spaces.MultiBinary(3)))
fault("space-unsupported", "error", BoxAction, action_space=spaces.Box(-1, 1, (0,), np.float32))
fault("space-unsupported", "error", observation_space=spaces.Tuple([spaces.Box(-1, 1, (0, 2), np.float32)]))
fault("reset-returns", "error", reset=lambda self, **named: Sound.reset(self, **named)[0])
fault("reset-returns", "error", info=lambda _: None)
fault("reset-seed", "error", reset=old_reset)
fault("step-returns", "error", endings=lambda self: (Sound.endings(self)[0],))
fault("ending-type", "error", endings=lambda _: (None, False))
fault("ending-type", "error", endings=lambda _: (np.zeros(2, bool), False))
fault("ending-type", "warning", endings=lambda self: tuple(map(int, Sound.endings(self))))
fault("observation-structure", "error", observe=lambda _: None)
fault("observation-shape", "error", observe=lambda self: self.place[:1].astype(np.float32))
fault("observation-dtype", "note", observe=lambda self: self.place)
fault("observation-dtype", "warning", Image, observe=lambda self: Image.observe(self).astype(np.float32) + 0.5)
fault("observation-dtype", "note", observe=lambda self: list(map(float, self.place)))
fault("observation-not-finite", "error", observe=lambda self: PLACE * np.nan if self.clock == 3 else Sound.observe(self))
fault("observation-outside", "warning", observation_space=spaces.Box(-1.1, 1.1, (2,), np.float32))
fault("observation-reused", "warning", observe=reused)
fault("observation-constant", "note", observe=lambda self: np.array([self.place[0], 1], np.float32))
fault(
    "observation-scale",
    "note",
    observation_space=spaces.Box(-1e4, 1e4, (2,), np.float32),
    observe=lambda self: (self.place * [1, 1000]).astype(np.float32),
)
fault("observation-scale", "note", observe=lambda self: (self.place * [1, 1e-4]).astype(np.float32))
fault("observation-structure", "error", MaskedByKey, observe=lambda self: {"place": Sound.observe(self)})
fault("observation-structure", "error", Nested, observe=lambda self: {**Nested.observe(self), "rest": (1, 2)})
fault("observation-shape", "error", Nested, **nested(signs=lambda _: np.ones(4, np.int64)))
fault("observation-dtype", "warning", Nested, **nested(signs=lambda self: np.full((2, 2), self.clock % 2, np.float32)))
fault("observation-dtype", "note", Nested, **nested(place=lambda self: self.place))
fault("observation-not-finite", "error", Nested, **nested(place=lambda self: PLACE * (np.nan if self.clock == 3 else 1)))
fault("observation-outside", "error", Nested, **nested(odd=lambda self: self.clock % 2))
fault("observation-outside", "error", Nested, **nested(signs=lambda self: np.array([[self.clock % 2] * 2, [self.clock % 7] * 2])))
fault("observation-outside", "warning", Nested, **nested(bits=lambda self: np.array([self.clock % 3, self.clock % 2], np.int8)))
fault("observation-constant", "note", Nested, **nested(odd=lambda _: -1))
fault("observation-scale", "note", Nested, **nested(place=lambda self: (self.place * [1, 1e-4]).astype(np.float32)))
fault("not-deterministic", "warning", Nested, **nested(odd=lambda _: np.random.randint(-1, 1)))
fault("reward-type", "error", reward=lambda _: None)
fault("reward-type", "error", reward=lambda _: np.ones(2))
fault("reward-type", "error", reward=late(1j, 1.0))
fault("reward-array", "warning", reward=lambda _: np.ones(1))
fault("reward-not-finite", "error", reward=late(float("nan"), 1.0))
fault("reward-not-finite", "error", reward=late(1e39, 1.0))
fault("reward-scale", "note", reward=late(-1e4, 1.0))
fault("reward-scale", "note", reward=lambda _: 1e-5)
fault("reward-zero", "note", reward=lambda _: 0)
fault("endless", "warning", endings=lambda _: (False, False))
fault("both-endings", "warning", endings=lambda self: (Sound.endings(self)[0],) * 2)
fault("both-endings", "note", endings=lambda self: (abs(self.place[0]) > 2, abs(self.place[0]) > 2.2))
fault("time-out-as-termination", "warning", endings=lambda self: (self.clock >= 20, False))
fault("one-step", "warning", endings=lambda _: (True, False))
fault("not-deterministic", "warning", begin=lambda self: (Sound.begin(self), setattr(self, "place", np.random.uniform(-1, 1, 2))))
fault("not-deterministic", "warning", push=lambda _, action: float(2 * action - 1 + np.random.uniform(-0.2, 0.2)))
fault("state-leaks", "warning", begin=begin_where_it_was)
fault("seed-unused", "note", begin=begin_alike, push=lambda _, action: float(2 * action - 1))
fault("action-whole-numbers", "error", BoxAction, action_space=spaces.Box(0, 5, (2,), np.int64))
fault("action-unbounded", "note", BoxAction, action_space=spaces.Box(-np.inf, np.inf, (2,), np.float32))
fault("action-float64", "note", BoxAction, action_space=spaces.Box(-1, 1, (2,), np.float64))
fault("action-range-large", "warning", BoxAction, action_space=spaces.Box(-1000, 1000, (2,), np.float32))
fault("action-range-small", "warning", BoxAction, action_space=spaces.Box(-0.01, 0.01, (2,), np.float32))
fault("action-range-small", "warning", BoxAction, action_space=spaces.Box(100, 101, (2,), np.float32))
fault("action-whole-numbers", "error", Nested, **nested_box(spaces.Box(0, 5, (2,), np.int64)))
fault("action-unbounded", "note", Nested, **nested_box(spaces.Box(-np.inf, np.inf, (2,), np.float32)))
fault("action-float64", "note", Nested, **nested_box(spaces.Box(-1, 1, (2,), np.float64)))
fault("action-range-large", "warning", Nested, **nested_box(spaces.Box(-1000, 1000, (2,), np.float32)))
fault("action-range-small", "warning", Nested, **nested_box(spaces.Box(-0.01, 0.01, (2,), np.float32)))
fault("mask-shape", "error", Masked, info=lambda _: {"action_mask": np.ones(2, bool)})
fault("mask-shape", "error", Masked, info=lambda _: {"action_mask": np.full(3, 0.5)})
fault("mask-shape", "error", MaskedByKey, allowed=lambda _: [1] * 2)
fault("mask-shape", "error", MaskedNested, info=lambda _: {"action_mask": {"force": None, "lights": None}})
fault("mask-shape", "error", MaskedNested, **mask_at(3, {"lights": np.array([2, 1, 3], np.int8)}))
fault(
    "mask-empty",
    "error",
    Masked,
    info=lambda self: {"action_mask": np.array([1, 1, 0]) * (self.clock < 3)},
    allowed=lambda _: [1] * 3,
)
fault("mask-empty", "error", MaskedNested, **mask_at(3, {"gear": (np.ones(2, np.int8), np.zeros(3, np.int8))}))
fault("mask-missing", "error", Masked, info=lambda self: {} if self.clock == 3 else Masked.info(self))
fault("mask-missing", "error", MaskedNested, info=lambda self: {"action_mask": self.bits() if self.clock < 3 else None})
fault("mask-missing", "warning", info=lambda self: {"action_mask": np.ones(2, bool)} if self.clock else {})
fault("slow-step", "note", reward=lambda self: time.sleep(0.002) or Sound.reward(self))
fault("close", "warning", close=lambda self: self.window.close())
fault("gymnasium", "warning", info=lambda self: self.__dict__.setdefault("shared", {}))


def levels(report: Report) -> list[tuple[str, str]]:
    return [(finding.code, finding.level) for finding in report.findings]


@pytest.mark.parametrize(("code", "level", "env"), FAULTS, ids=[f"{n}-{code}" for n, (code, _, _) in enumerate(FAULTS)])
def test_a_fault_is_found_and_nothing_else(code: str, level: str, env: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxrl.check.checker, "REPLAY_STEPS", 50)
    assert levels(check(env, limit=200)) == [(code, level)]


def test_every_finding_has_a_fault_and_a_line_in_the_documentation() -> None:
    assert {code for code, _, _ in FAULTS} == ADVICE.keys()
    page = (DOCS / "check.md").read_text()
    assert [code for code, (level, _, _) in ADVICE.items() if f"| `{code}` | {level} |" not in page] == []
    assert {level for level, _, _ in ADVICE.values()} == set(LEVELS)


@pytest.mark.parametrize("env", SOUND)
def test_sound_environments_have_no_findings(env: type) -> None:
    report = check(env)
    assert levels(report) == []
    assert report.summary["episodes"] == 10
    assert report.summary["step_microseconds"] > 0


def what(env: type, code: str) -> str:
    return next(finding.what for finding in check(env).findings if finding.code == code)


@pytest.mark.parametrize(
    ("space", "leaf", "instead"),
    [
        (spaces.Graph(spaces.Discrete(2), None), "Graph(", "a Dict of Boxes, padded"),
        (spaces.Text(3), "Text(", "a MultiDiscrete of its characters' numbers"),
        (spaces.Sequence(spaces.Discrete(2)), "Sequence(", "a Box or MultiDiscrete padded"),
    ],
)
@pytest.mark.parametrize("kind", ["observation_space", "action_space"])
def test_a_space_of_no_fixed_size_is_named_with_what_to_wrap_it_in(kind: str, space: Any, leaf: str, instead: str) -> None:
    inside = spaces.Dict(ball=spaces.Discrete(2), arm=spaces.Tuple([spaces.Discrete(2), space]))
    report = check(type("Unsized", (Sound,), {kind: inside}))
    assert report.findings[0].what.startswith(f"{kind}['arm'][1] is {leaf}")
    assert f"wrap the environment so that it is {instead}" in report.findings[0].what
    assert "Dict(" in report.as_text().splitlines()[-3 + (kind == "action_space")]  # the summary is there all the same


def test_findings_name_the_leaf() -> None:
    constant = type("Constant", (Nested,), nested(odd=lambda _: -1))
    assert what(constant, "observation-constant") == "1 of 10 observed numbers never change: observation['rest'][2]['odd']"
    small = type("Small", (Nested,), nested(place=lambda self: (self.place * [1e-4, 1]).astype(np.float32)))
    assert what(small, "observation-scale").startswith("observation['place'][1] reaches ")
    outside = type("Outside", (Nested,), nested(odd=lambda _: 1))
    assert what(outside, "observation-outside").startswith("the observation['rest'][2]['odd'] of reset has values outside ")
    large = type("Large", (Nested,), nested_box(spaces.Box(np.array([[-1, -30]]), np.array([[1, 30]]), dtype=np.float32)))
    assert what(large, "action-range-large") == "action['force'][0][0, 1] ranges from -30 to 30"
    whole = type("Whole", (Nested,), nested_box(spaces.Box(0, 5, (2,), np.int64)))
    assert what(whole, "action-whole-numbers").startswith("action['force'][0] is Box(")
    empty = type("Empty", (MaskedNested,), mask_at(3, {"gear": (np.ones(2, np.int8), np.zeros(3, np.int8))}))
    assert what(empty, "mask-empty") == "info['action_mask'] of step allows nothing for the action['gear'][1]"
    dark = type("Dark", (MaskedNested,), mask_at(0, {"lights": np.array([[1, 1], [0, 0], [1, 1]])}))
    assert what(dark, "mask-empty") == "info['action_mask'] of reset allows nothing for the action['lights'][1]"


def test_a_mask_that_does_not_fit_is_told_as_training_would() -> None:
    short = type("Short", (Masked,), {"info": lambda _: {"action_mask": np.ones(2, bool)}})
    assert "must hold 3 bits" in what(short, "mask-shape")
    unclear = type("Unclear", (MaskedNested,), mask_at(3, {"lights": np.array([2, 1, 3], np.int8)}))
    assert "must hold 0 (must be 0), 1 (must be 1) or 2 (free)" in what(unclear, "mask-shape")


@pytest.mark.parametrize(
    ("env", "place"),
    [(Masked, "info['action_mask']"), (MaskedNested, "info['action_mask']"), (MaskedByKey, "observation['action_mask']")],
)
def test_summary_says_where_masks_are(env: type, place: str) -> None:
    report = check(env)
    assert report.summary["action_mask"] == place
    assert f"    action masks    found in {place}; training uses them" in report.as_text().splitlines()
    assert "action_mask" not in check(Sound).summary


def test_random_play_is_uniform_over_what_is_allowed() -> None:
    taken = []

    class Four(Sound):
        action_space = spaces.Discrete(4)
        limit = 400

        def info(self) -> Any:
            return {"action_mask": np.array([0, 1, 1, 0])}

        def push(self, action: Any) -> float:
            taken.append(int(action))
            return super().push(action - 1)

    check(Four)
    assert set(taken) == {1, 2}
    assert 0.4 < np.mean(np.array(taken) == 1) < 0.6


def test_what_sample_draws_by_a_mask_is_left_as_it_is_and_other_actions_become_such() -> None:
    env = MaskedNested()
    env.reset(seed=1)
    masks, space = Masks(env), env.action_space
    space.seed(1)
    masks.bits = flatten_mask(space, env.bits())
    for _ in range(50):
        allowed = space.sample(env.bits())
        assert data_equivalence(masks.legal(allowed), allowed, exact=True)
        swapped = masks.legal(space.sample())
        assert space.contains(swapped)
        assert data_equivalence(masks.legal(swapped), swapped, exact=True)


def test_lists_and_arrays_pass_for_tuples_and_any_whole_number_for_a_category() -> None:
    """As in training and in Gymnasium's own `contains`."""

    class Loose(Sound):
        observation_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(50)])

        def observe(self) -> Any:
            numbers = [int(self.place[0] > 0), self.clock]
            return np.array(numbers) if self.clock % 2 else numbers

    assert not {finding.code for finding in check(Loose).findings} - {"gymnasium"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ("CartPole-v1", []),
        ("Blackjack-v1", []),
        ("Taxi-v4", []),
        ("Pendulum-v1", []),
        ("FrozenLake-v1", [("reward-zero", "note")]),
    ],
)
def test_known_environments(env: str, expected: list[tuple[str, str]]) -> None:
    assert levels(check(env)) == expected


def test_a_time_limit_around_an_endless_environment_is_the_cure() -> None:
    endless = next(env for code, _, env in FAULTS if code == "endless")
    assert levels(check(lambda: gymnasium.wrappers.TimeLimit(endless(), 30), limit=200)) == []


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64])
def test_categories_of_any_width_are_inside_their_space(dtype: type) -> None:
    class Narrow(Sound):
        observation_space = spaces.MultiDiscrete([3, 50], dtype=np.int8, start=[0, 80])

        def observe(self) -> Any:
            return np.array([self.clock % 3, 80 + self.clock], dtype)

    assert "observation-outside" not in check(Narrow).codes
    assert "observation-dtype" not in check(Narrow).codes


def test_few_episodes_of_one_length_prove_nothing() -> None:
    clock = next(env for code, _, env in FAULTS if code == "time-out-as-termination")
    assert levels(check(clock, episodes=2)) == []


def test_a_flag_that_is_set_rarely_needs_many_steps_to_be_called_constant() -> None:
    constant = type("Constant", (Nested,), nested(odd=lambda _: -1))
    assert levels(check(constant, episodes=2)) == []
    assert levels(check(constant, episodes=20)) == [("observation-constant", "note")]


def test_numbers_of_the_summary() -> None:
    class Counted(Sound):
        def endings(self) -> Any:
            return False, self.clock == 7

        def reward(self) -> Any:
            return 2

    summary = check(Counted, episodes=4).summary
    assert (summary["episodes"], summary["lengths"], summary["return_mean"], summary["return_deviation"]) == (
        4,
        [7, 7],
        14.0,
        0.0,
    )
    assert (summary["preset"], summary["num_envs"], summary["vector"]) == ("default", 8, "inprocess")


def test_never_two_at_once() -> None:
    alive = []

    class Jealous(Sound):
        def __init__(self) -> None:
            assert not alive
            alive.append(self)

        def close(self) -> None:
            alive.clear()

    assert levels(check(Jealous)) == []
    assert alive == []


def test_command_prints_what_is_wrong_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "test_check:Broken", "--seed", "3"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "error: step raised RuntimeError: the wheel came off [raises]"
    assert lines[1].startswith("    For PPO: training stops there. To do: ")
    assert lines[2] == "test_check:Broken: 1 error"
    assert "--vector inprocess" in lines[-1]


class Broken(Sound):
    def __init__(self, word: str = "") -> None:
        if word:
            print(word)

    reward = raise_late


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "test_check:Broken", "--debug"]) == 1
    assert "in raise_late" in capsys.readouterr().err


def test_json_is_all_there_is_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "test_check:Broken", "--env-kwargs", "word=noise", "--json"]) == 1
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["env"] == "test_check:Broken"
    assert told["summary"]["preset"] == "default"
    assert [finding["code"] for finding in told["findings"]] == ["raises"]
    assert told["findings"][0].keys() == {"level", "code", "what", "effect", "fix"}
    assert set(err.split()) == {"noise"}  # what the environment printed, and no traceback


def test_a_sound_environment_prints_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "CartPole-v1", "--episodes", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "CartPole-v1: nothing found"
    assert [line.split("  ")[2] for line in lines[1:]] == ["observations", "actions", "random policy", "time", "proxrl train"]
    assert "episodes: 5" in lines[3]
    assert lines[-1].endswith("preset classic, 4 environments, --vector inprocess")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["CartPole-v9"], "did you mean CartPole-v1"),
        (["CartPole-v1", "--episodes", "0"], "--episodes is 0"),
        (["CartPole-v1", "--seed", "-1"], "--seed is -1"),
        (["CartPole-v1", "--env-kwargs", "nonsense=1"], "check --env-kwargs nonsense=1"),
        (["CartPole-v1", "--env-kwargs", "nonsense"], "takes key=value"),
        (["odd_envs:not_an_env"], "must return a gymnasium.Env"),
    ],
)
def test_bad_input_is_one_line(words: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("proxrl: error: ")
    assert part in err


def test_what_only_envpool_has_is_refused() -> None:
    pytest.importorskip("envpool")
    with pytest.raises(ProxRLError, match="only EnvPool has"):
        check("CheetahRun-v1")
