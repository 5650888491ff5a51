"""`proxrl check`: for every finding an environment with this fault and no other, and sound environments without findings."""

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
from proxrl.check.findings import ADVICE, LEVELS, CheckReport
from proxrl.check.masked_play import Masks
from proxrl.cli import main
from proxrl.envs.masks import flatten_mask
from proxrl.errors import ProxRLError

DOCS = Path(__file__).parents[2] / "docs"


class Sound(gymnasium.Env):
    """A random walk from a random start to an edge or a time limit. Each fault below overrides one method."""

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
    """Every supported kind of space in observations and actions; the Discrete in the action's Tuple is the push."""

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
    """Raises an error for a forbidden action, as board games do."""

    action_space = spaces.Discrete(3, start=5)

    def allowed(self) -> Any:
        return np.array([self.place[0] > -1, self.place[0] < 1, False])

    def info(self) -> Any:
        return {"action_mask": self.allowed()}

    def push(self, action: Any) -> float:
        assert self.allowed()[action - 5]
        return super().push(action - 5)


class MaskedByKey(Masked):
    """The mask is not part of the observation, so an unsupported space and constant numbers in it don't matter."""

    observation_space = spaces.Dict(place=spaces.Box(-5, 5, (2,), np.float32), action_mask=spaces.Sequence(spaces.Discrete(2)))

    def observe(self) -> Any:
        return {"place": super().observe(), "action_mask": tuple(int(bit) for bit in self.allowed())}

    def info(self) -> Any:
        return {"action_mask": "ignored, because the observation has a mask"}


class MaskedNested(Nested):
    """Masks as `action_space.sample(mask)` takes them: only the last of three gears, two fixed lights, one push near an edge."""

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
    """The same masks as one flat array of bits."""

    def info(self) -> Any:
        row = [*self.bits()["force"][1], 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 0]
        return {"action_mask": np.array(row, bool)}


class UnusedMask(BoxAction):
    """An action without discrete parts can't be masked, so training ignores the mask."""

    def info(self) -> Any:
        return {"action_mask": np.ones(2)}


class Image(Sound):
    observation_space = spaces.Box(0, 255, (40, 40, 3), np.uint8)

    def observe(self) -> Any:
        return np.full((40, 40, 3), 100 + 20 * self.place[0], np.uint8)


class SmallImage(Sound):
    """Bytes are scaled by the network and never whitened, and most pixels of an image are background."""

    observation_space = spaces.Box(0, 255, (16, 16, 3), np.uint8)

    def observe(self) -> Any:
        image = np.full((16, 16, 3), 255, np.uint8)
        image[3, 4] = 100 + 20 * self.place[0]
        return image


SOUND = [Sound, BoxAction, Image, SmallImage, Nested, Masked, MaskedByKey, MaskedNested, MaskedRow, UnusedMask]
FAULTS: list[tuple[str, str, type[gymnasium.Env]]] = []


def fault(code: str, level: str, base: type[gymnasium.Env] = Sound, **replaced: Any) -> None:
    FAULTS.append((code, level, type(code, (base,), replaced)))


def raise_in_third_step(self: Any) -> float:
    if self.clock == 3:
        raise RuntimeError("the wheel came off\nand more")
    return 1.0


def exit_process(_: Any) -> None:
    raise SystemExit(3)


def reset_without_seed(self: Any) -> Any:
    return Sound.reset(self)


def observe_into_buffer(self: Any) -> Any:
    if not hasattr(self, "buffer"):
        self.buffer = np.zeros(2, np.float32)
    self.buffer[:] = self.place
    return self.buffer


def begin_depending_on_the_last_episode(self: Any) -> None:
    clock = getattr(self, "clock", 0)
    Sound.begin(self)
    self.place += clock / 100


def begin_at_a_fixed_place(self: Any) -> None:
    self.place, self.clock = np.array([0.1, 0.2]), 0


def in_third_step(value: Any, otherwise: Any) -> Any:
    """Return `value` in the third step only, so that checking the first step is not enough."""
    return lambda self: value if self.clock == 3 else otherwise


def nested(**replaced: Any) -> Any:
    """Override `Nested.observe`, with some leaves replaced."""
    return {"observe": lambda self: replace_leaves(Nested.observe(self), **{key: make(self) for key, make in replaced.items()})}


def replace_leaves(obs: Any, **replaced: Any) -> Any:
    clock, bits, deeper = obs["rest"]
    place = replaced.pop("place", obs["place"])
    return {"place": place, "rest": (replaced.pop("clock", clock), replaced.pop("bits", bits), {**deeper, **replaced})}


def nested_box(box: spaces.Space) -> Any:
    """Override the action space of Nested, with another Box in its Tuple."""
    force = spaces.Tuple([box, spaces.Discrete(2, start=-1)])
    return {"action_space": spaces.Dict(force=force, gear=spaces.Discrete(3))}


def mask_at(clock: int, change: Any) -> Any:
    """Override `MaskedNested.info`, with parts of the mask changed at one time step."""
    return {"info": lambda self: {"action_mask": {**self.bits(), **(change if self.clock == clock else {})}}}


PLACE = np.array([0.5, 0.5], np.float32)

fault("raises", "error", reward=raise_in_third_step)
fault("raises", "error", begin=exit_process)
fault("observation-structure", "error", observe=lambda self: {"place": self.place.astype(np.float32)})
fault("space-unsupported", "error", observation_space=spaces.Text(3))
fault("space-missing", "error", action_space=None)
fault("space-missing", "error", observation_space=property(lambda self: self.forgotten))
fault("space-unsupported", "error", observation_space=spaces.Dict(a=spaces.Graph(spaces.Discrete(2), None)))
fault("space-unsupported", "error", observation_space=spaces.Dict(a=spaces.Tuple([spaces.Sequence(spaces.Discrete(2))])))
fault("space-unsupported", "error", action_space=spaces.Tuple([spaces.Discrete(2), spaces.OneOf([spaces.Discrete(2)])]))
fault("space-unsupported", "error", MaskedByKey, observation_space=spaces.Dict(action_mask=spaces.MultiBinary(3)))
fault("space-unsupported", "error", BoxAction, action_space=spaces.Box(-1, 1, (0,), np.float32))
fault("space-unsupported", "error", observation_space=spaces.Tuple([spaces.Box(-1, 1, (0, 2), np.float32)]))
fault("reset-returns", "error", reset=lambda self, **named: Sound.reset(self, **named)[0])
fault("reset-returns", "error", info=lambda _: None)
fault("reset-seed", "error", reset=reset_without_seed)
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
fault("observation-reused", "warning", observe=observe_into_buffer)
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
fault(
    "image-channels",
    "note",
    observation_space=spaces.Box(0, 255, (40, 30, 20), np.uint8),
    observe=lambda self: np.full((40, 30, 20), 100 + 20 * self.place[0], np.uint8),
)
fault(
    "image-not-recognized",
    "warning",
    observation_space=spaces.Box(0, 1, (3, 40, 40), np.float32),
    observe=lambda self: np.full((3, 40, 40), 0.5 + 0.1 * self.place[0], np.float32),
)
fault(
    "image-not-recognized",
    "warning",
    observation_space=spaces.Box(0, 255, (40, 40), np.uint8),
    observe=lambda self: np.full((40, 40), 100 + 20 * self.place[0], np.uint8),
)
fault("observation-constant", "note", Image, observe=lambda _: np.full((40, 40, 3), 7, np.uint8))
fault("reward-type", "error", reward=lambda _: None)
fault("reward-type", "error", reward=lambda _: np.ones(2))
fault("reward-type", "error", reward=in_third_step(1j, 1.0))
fault("reward-array", "warning", reward=lambda _: np.ones(1))
fault("reward-not-finite", "error", reward=in_third_step(float("nan"), 1.0))
fault("reward-not-finite", "error", reward=in_third_step(1e39, 1.0))
fault("reward-scale", "note", reward=in_third_step(-1e4, 1.0))
fault("reward-scale", "note", reward=lambda _: 1e-5)
fault("reward-zero", "note", reward=lambda _: 0)
fault("endless", "warning", endings=lambda _: (False, False))
fault("both-endings", "warning", endings=lambda self: (Sound.endings(self)[0],) * 2)
fault("both-endings", "note", endings=lambda self: (abs(self.place[0]) > 2, abs(self.place[0]) > 2.2))
fault("time-out-as-termination", "warning", endings=lambda self: (self.clock >= 20, False))
fault("one-step", "warning", endings=lambda _: (True, False))
fault("not-deterministic", "warning", begin=lambda self: (Sound.begin(self), setattr(self, "place", np.random.uniform(-1, 1, 2))))
fault("not-deterministic", "warning", push=lambda _, action: float(2 * action - 1 + np.random.uniform(-0.2, 0.2)))
fault("state-leaks", "warning", begin=begin_depending_on_the_last_episode)
fault("seed-unused", "note", begin=begin_at_a_fixed_place, push=lambda _, action: float(2 * action - 1))
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


@pytest.fixture(autouse=True)
def no_slow_steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Report `slow-step` only in its own test: on a busy machine, the steps of any environment may be slow."""
    if "slow-step" not in request.node.name:
        monkeypatch.setattr(proxrl.check.checker, "SLOW_STEP", float("inf"))


def levels(report: CheckReport) -> list[tuple[str, str]]:
    return [(finding.code, finding.level) for finding in report.findings]


@pytest.mark.parametrize(("code", "level", "env"), FAULTS, ids=[f"{n}-{code}" for n, (code, _, _) in enumerate(FAULTS)])
def test_each_fault_gives_its_finding_and_no_other(code: str, level: str, env: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxrl.check.checker, "REPLAY_STEPS", 50)
    assert levels(check(env, limit=200)) == [(code, level)]


def test_every_finding_has_a_fault_in_this_file() -> None:
    assert {code for code, _, _ in FAULTS} == ADVICE.keys()
    assert {level for level, _, _ in ADVICE.values()} == set(LEVELS)


@pytest.mark.parametrize("code", ADVICE)
def test_the_documentation_has_the_level_effect_and_fix_of_each_finding(code: str) -> None:
    level, effect, fix = ADVICE[code]
    (row,) = [line for line in (DOCS / "check.md").read_text().splitlines() if line.startswith(f"| `{code}` |")]
    assert row.startswith(f"| `{code}` | {level} |")
    assert f"| {effect} | {fix}" in row


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
        (spaces.Text(3), "Text(", "a MultiDiscrete of character codes"),
        (spaces.Sequence(spaces.Discrete(2)), "Sequence(", "a Box or MultiDiscrete padded"),
    ],
)
@pytest.mark.parametrize("kind", ["observation_space", "action_space"])
def test_an_unsupported_space_is_named_with_a_replacement(kind: str, space: Any, leaf: str, instead: str) -> None:
    inside = spaces.Dict(ball=spaces.Discrete(2), arm=spaces.Tuple([spaces.Discrete(2), space]))
    report = check(type("Unsized", (Sound,), {kind: inside}))
    assert report.findings[0].what.startswith(f"{kind}['arm'][1] is {leaf}")
    assert f"wrap the environment so that it is {instead}" in report.findings[0].what
    assert "Dict(" in report.as_text().splitlines()[-3 + (kind == "action_space")]  # in the summary


def test_findings_name_the_leaf() -> None:
    constant = type("Constant", (Nested,), nested(odd=lambda _: -1))
    assert what(constant, "observation-constant") == "1 of 10 observed numbers never change: observation['rest'][2]['odd']"
    small = type("Small", (Nested,), nested(place=lambda self: (self.place * [1e-4, 1]).astype(np.float32)))
    assert what(small, "observation-scale").startswith("observation['place'][1] reaches ")
    outside = type("Outside", (Nested,), nested(odd=lambda _: 1))
    assert what(outside, "observation-outside").startswith("observation['rest'][2]['odd'] returned by reset has values outside ")
    large = type("Large", (Nested,), nested_box(spaces.Box(np.array([[-1, -30]]), np.array([[1, 30]]), dtype=np.float32)))
    assert what(large, "action-range-large") == "action['force'][0][0, 1] ranges from -30 to 30"
    whole = type("Whole", (Nested,), nested_box(spaces.Box(0, 5, (2,), np.int64)))
    assert what(whole, "action-whole-numbers").startswith("action['force'][0] is Box(")
    empty = type("Empty", (MaskedNested,), mask_at(3, {"gear": (np.ones(2, np.int8), np.zeros(3, np.int8))}))
    assert what(empty, "mask-empty") == "info['action_mask'] returned by step allows no choice for action['gear'][1]"
    structure = type("Structure", (Nested,), {"observe": lambda self: {**Nested.observe(self), "rest": (1, 2)}})
    assert what(structure, "observation-structure") == (
        "reset returns another structure than observation_space: observation['rest'] is (int, int), not a tuple of 3"
    )
    dark = type("Dark", (MaskedNested,), mask_at(0, {"lights": np.array([[1, 1], [0, 0], [1, 1]])}))
    assert what(dark, "mask-empty") == "info['action_mask'] returned by reset allows no choice for action['lights'][1]"


def test_a_mask_that_does_not_fit_gives_the_message_of_training() -> None:
    short = type("Short", (Masked,), {"info": lambda _: {"action_mask": np.ones(2, bool)}})
    assert "must hold 3 bits" in what(short, "mask-shape")
    unclear = type("Unclear", (MaskedNested,), mask_at(3, {"lights": np.array([2, 1, 3], np.int8)}))
    assert "must hold 0 (must be 0), 1 (must be 1) or 2 (free)" in what(unclear, "mask-shape")


@pytest.mark.parametrize(
    ("env", "location"),
    [(Masked, "info['action_mask']"), (MaskedNested, "info['action_mask']"), (MaskedByKey, "observation['action_mask']")],
)
def test_the_summary_names_where_masks_are(env: type, location: str) -> None:
    report = check(env)
    assert report.summary["action_mask"] == location
    assert f"    action masks    found in {location}; training uses them" in report.as_text().splitlines()
    assert "action_mask" not in check(Sound).summary


def test_random_play_is_uniform_over_the_allowed_actions() -> None:
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


def test_only_forbidden_choices_are_replaced() -> None:
    env = MaskedNested()
    env.reset(seed=1)
    masks, space = Masks(env), env.action_space
    space.seed(1)
    masks.bits = flatten_mask(space, env.bits())
    for _ in range(50):
        allowed = space.sample(env.bits())
        assert data_equivalence(masks.replace_forbidden(allowed), allowed, exact=True)
        replaced = masks.replace_forbidden(space.sample())
        assert space.contains(replaced)
        assert data_equivalence(masks.replace_forbidden(replaced), replaced, exact=True)


def test_tuples_may_be_lists_or_arrays_and_categories_any_integer() -> None:
    """As in training and in Gymnasium's `contains`."""

    class Loose(Sound):
        observation_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(50)])

        def observe(self) -> Any:
            numbers = [int(self.place[0] > 0), self.clock]
            return np.array(numbers) if self.clock % 2 else numbers

    assert not {finding.code for finding in check(Loose).findings} - {"gymnasium"}


def test_the_package_exports_check() -> None:
    assert proxrl.check.check is check


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


def test_a_time_limit_removes_the_finding_endless() -> None:
    endless = next(env for code, _, env in FAULTS if code == "endless")
    assert levels(check(lambda: gymnasium.wrappers.TimeLimit(endless(), 30), limit=200)) == []


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64])
def test_categories_of_any_integer_dtype_are_inside_their_space(dtype: type) -> None:
    class Narrow(Sound):
        observation_space = spaces.MultiDiscrete([3, 50], dtype=np.int8, start=[0, 80])

        def observe(self) -> Any:
            return np.array([self.clock % 3, 80 + self.clock], dtype)

    assert "observation-outside" not in check(Narrow).codes
    assert "observation-dtype" not in check(Narrow).codes


def test_two_episodes_of_equal_length_are_no_finding() -> None:
    clock = next(env for code, _, env in FAULTS if code == "time-out-as-termination")
    assert levels(check(clock, episodes=2)) == []


def test_a_discrete_value_counts_as_constant_only_after_many_steps() -> None:
    constant = type("Constant", (Nested,), nested(odd=lambda _: -1))
    assert levels(check(constant, episodes=2)) == []
    assert levels(check(constant, episodes=20)) == [("observation-constant", "note")]


def test_the_numbers_in_the_summary() -> None:
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


def test_two_environments_are_never_open_at_once() -> None:
    alive = []

    class Exclusive(Sound):
        def __init__(self) -> None:
            assert not alive
            alive.append(self)

        def close(self) -> None:
            alive.clear()

    assert levels(check(Exclusive)) == []
    assert alive == []


def test_the_command_prints_the_fault_its_effect_and_its_fix(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "test_check:Broken", "--seed", "3"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "error: step raised RuntimeError: the wheel came off [raises]"
    assert lines[1].startswith("    Effect on PPO: training stops with the same exception. To fix: ")
    assert lines[2] == "test_check:Broken: 1 error"
    assert "--vector inprocess" in lines[-1]


class Broken(Sound):
    def __init__(self, word: str = "") -> None:
        if word:
            print(word)

    reward = raise_in_third_step


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "test_check:Broken", "--debug"]) == 1
    assert "in raise_in_third_step" in capsys.readouterr().err


def test_standard_output_is_nothing_but_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "test_check:Broken", "--env-kwargs", "word=noise", "--json"]) == 1
    out, err = capsys.readouterr()
    printed = json.loads(out)
    assert printed["env"] == "test_check:Broken"
    assert printed["summary"]["preset"] == "default"
    assert [finding["code"] for finding in printed["findings"]] == ["raises"]
    assert printed["findings"][0].keys() == {"level", "code", "what", "effect", "fix"}
    assert set(err.split()) == {"noise"}  # printed by the environment; there is no traceback


def test_a_sound_environment_prints_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "CartPole-v1", "--episodes", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "CartPole-v1: nothing found"
    assert [line.split("  ")[2] for line in lines[1:]] == ["observations", "actions", "random policy", "time", "proxrl train"]
    assert "episodes: 5" in lines[3]
    assert lines[-1].endswith("preset classic, 8 environments, --vector inprocess")


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


def test_tasks_that_only_envpool_has_are_rejected() -> None:
    pytest.importorskip("envpool")
    with pytest.raises(ProxRLError, match="only EnvPool has"):
        check("CheetahRun-v1")
