"""`proxrl check`: for every finding an environment that has this fault and no other, and sound ones that have none."""

import json
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import proxrl.check
from proxrl.check import check
from proxrl.cli import main
from proxrl.errors import ProxRLError
from proxrl.findings import ADVICE, LEVELS, Report

DOCS = Path(__file__).parent.parent / "docs"


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
    observation_space = spaces.Dict(
        place=spaces.Box(-5, 5, (2,), np.float32), rest=spaces.Tuple([spaces.Discrete(41), spaces.MultiBinary(2)])
    )

    def observe(self) -> Any:
        return {"place": super().observe(), "rest": (self.clock, (self.place > 0).astype(np.int8))}


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


class Image(Sound):
    observation_space = spaces.Box(0, 255, (40, 40, 3), np.uint8)

    def observe(self) -> Any:
        return np.full((40, 40, 3), 100 + 20 * self.place[0], np.uint8)


SOUND = [Sound, BoxAction, Image]
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


PLACE = np.array([0.5, 0.5], np.float32)

fault("raises", "error", reward=raise_late)
fault("raises", "error", begin=leave)
fault("space-unsupported", "error", Nested)
fault("mask-unused", "warning", Masked)
fault("observation-structure", "error", observe=lambda self: {"place": self.place.astype(np.float32)})
fault("space-unsupported", "error", observation_space=spaces.Text(3))
fault("space-unsupported", "error", action_space=None)
fault("space-unsupported", "error", observation_space=spaces.Dict(a=spaces.Graph(spaces.Discrete(2), None)))
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
fault("mask-shape", "error", Masked, info=lambda _: {"action_mask": np.ones(2, bool)})
fault("mask-shape", "error", Masked, info=lambda _: {"action_mask": np.full(3, 0.5)})
fault(
    "mask-empty",
    "error",
    Masked,
    info=lambda self: {"action_mask": np.array([1, 1, 0]) * (self.clock < 3)},
    allowed=lambda _: [1] * 3,
)
fault("slow-step", "note", reward=lambda self: time.sleep(0.002) or Sound.reward(self))
fault("close", "warning", close=lambda self: self.window.close())
fault("gymnasium", "warning", info=lambda self: self.__dict__.setdefault("shared", {}))


def levels(report: Report) -> list[tuple[str, str]]:
    return [(finding.code, finding.level) for finding in report.findings]


@pytest.mark.parametrize(("code", "level", "env"), FAULTS, ids=[f"{n}-{code}" for n, (code, _, _) in enumerate(FAULTS)])
def test_a_fault_is_found_and_nothing_else(code: str, level: str, env: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxrl.check, "REPLAY_STEPS", 50)
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


@pytest.mark.parametrize(
    ("env", "expected"), [("CartPole-v1", []), ("Pendulum-v1", []), ("FrozenLake-v1", [("reward-zero", "note")])]
)
def test_known_environments(env: str, expected: list[tuple[str, str]]) -> None:
    assert levels(check(env)) == expected


def test_a_time_limit_around_an_endless_environment_is_the_cure() -> None:
    endless = next(env for code, _, env in FAULTS if code == "endless")
    assert levels(check(lambda: gymnasium.wrappers.TimeLimit(endless(), 30), limit=200)) == []


def test_few_episodes_of_one_length_prove_nothing() -> None:
    clock = next(env for code, _, env in FAULTS if code == "time-out-as-termination")
    assert levels(check(clock, episodes=2)) == []


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
