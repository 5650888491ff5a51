"""What `proxrl check` can find (for each finding its level, what it does to PPO, what to change), and the report of it.

Levels: an error stops training or makes it meaningless, a warning makes it worse than it need be, a note is worth knowing.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

LEVELS = ("error", "warning", "note")

ADVICE: dict[str, tuple[str, str, str]] = {
    "raises": ("error", "training stops there", "mend the exception; --debug shows where it comes from"),
    "space-unsupported": (
        "error",
        "training can't begin: no network can be built for it",
        "change the space, or wrap the environment in a gymnasium.ObservationWrapper or ActionWrapper that does",
    ),
    "reset-returns": ("error", "the first observation can't be read", "return (observation, info), where info is a dict"),
    "reset-seed": (
        "error",
        "every episode begins by reset(seed=...), so training can't begin",
        "take reset(self, *, seed=None, options=None) and call super().reset(seed=seed)",
    ),
    "step-returns": ("error", "its parts can't be told apart", "return (observation, reward, terminated, truncated, info)"),
    "ending-type": (
        "error",
        "an ending may be missed or seen at every step, which falsifies all advantages around it",
        "return terminated and truncated as bool",
    ),
    "observation-structure": ("error", "there is no row to store it in", "return what observation_space describes"),
    "observation-shape": ("error", "numpy stretches it over its row or refuses it", "make array and space agree in shape"),
    "observation-dtype": ("warning", "it is cast: whole numbers drop fractions and wrap around", "return the dtype of the space"),
    "observation-not-finite": (
        "error",
        "one such number makes loss and weights NaN, and normalising statistics never recover",
        "find the division or overflow behind it; end the episode before the simulation diverges",
    ),
    "observation-outside": (
        "warning",
        "units and scaling derived from the bounds are wrong; a discrete value beyond them stops the run or passes for another",
        "correct the bounds of the space, or clip to them",
    ),
    "observation-reused": (
        "warning",
        "ProxRL copies at once, but frame stacking and whatever else keeps an observation sees later ones",
        "return a copy",
    ),
    "observation-constant": ("note", "it tells the policy nothing", "leave it out, unless it varies under a better policy"),
    "observation-scale": (
        "note",
        "large components saturate the network and drown small ones",
        "keep --normalize-observations on, which presets for unknown environments do, or rescale",
    ),
    "reward-type": ("error", "it can't be added up to a return", "return one real number, such as float(reward)"),
    "reward-array": ("warning", "numpy is about to refuse arrays as numbers", "return float(reward)"),
    "reward-not-finite": (
        "error",
        "returns, advantages and then all weights become NaN",
        "bound the reward (32-bit floats hold it)",
    ),
    "reward-scale": (
        "note",
        "value loss and value clipping depend on the scale of returns: the policy's share of a shared gradient shifts",
        "keep --normalize-rewards on, which presets for unknown environments do, or rescale",
    ),
    "reward-zero": (
        "note",
        "all advantages are zero until luck finds a reward: a sparse task",
        "shape the reward, begin episodes nearer to the goal, or raise --entropy-coef",
    ),
    "endless": (
        "warning",
        "PPO never sees a finished episode, so no return is reported, and an evaluation can't end",
        "give it a limit: gymnasium.wrappers.TimeLimit(env, max_episode_steps=...)",
    ),
    "both-endings": (
        "note",
        "terminated wins, so a time-out counts as the end of the task and nothing is bootstrapped",
        "set truncated only where the clock alone ends the episode, terminated only where the task does",
    ),
    "time-out-as-termination": (
        "warning",
        "the value of the cut-off future counts as zero, so long-lived states look worthless for no reason they can show",
        "report a time limit as truncated, or let the observation tell the time if the task truly ends then",
    ),
    "one-step": ("warning", "there is no future to discount: a bandit", "check the ending, if more than one step was meant"),
    "not-deterministic": (
        "warning",
        "the same seed gives another run: nothing can be repeated, and resuming changes the result",
        "draw every random number from self.np_random, after super().reset(seed=seed)",
    ),
    "state-leaks": (
        "warning",
        "an episode depends on the one before, which no observation shows, and runs can't be repeated",
        "set every field that step changes in reset",
    ),
    "seed-unused": (
        "note",
        "parallel environments all begin alike and decorrelate only by their actions",
        "draw the start from self.np_random, if it should vary; otherwise nothing",
    ),
    "action-whole-numbers": ("error", "a Gaussian can't act in whole numbers", "use MultiDiscrete, or round floats"),
    "action-unbounded": ("note", "samples are never clipped, so rare large ones reach the environment", "bound the Box"),
    "action-float64": ("note", "policies sample in 32 bits, so the further digits are empty", "use dtype float32"),
    "action-range-large": (
        "warning",
        "the policy begins as a Gaussian around 0 with deviation 1: most of the range is never tried",
        "use bounds of [-1, 1] and scale in the environment: gymnasium.wrappers.RescaleAction(env, -1.0, 1.0)",
    ),
    "action-range-small": (
        "warning",
        "the policy begins as a Gaussian around 0 with deviation 1: nearly every sample is clipped to a bound",
        "use bounds of [-1, 1] and scale in the environment: gymnasium.wrappers.RescaleAction(env, -1.0, 1.0)",
    ),
    "mask-shape": (
        "error",
        "training stops there: it can't be laid over the probabilities",
        "give what action_space.sample(mask) takes, or one row of bits, leaf after leaf of the action space",
    ),
    "mask-empty": (
        "error",
        "training stops there: nothing is left to sample",
        "allow a choice of every discrete part, or end the episode before",
    ),
    "mask-missing": (
        "error",
        "training stops there; without a mask after the first reset it begins, but never uses any",
        "give a mask after every reset and step, all ones where nothing is forbidden; only last steps need none",
    ),
    "slow-step": ("note", "the environments run one after another and decide the speed of training", "try --vector workers"),
    "close": ("warning", "a run that is done ends in an error", "let close succeed, also when it is called twice"),
    "gymnasium": ("warning", "other tools and wrappers may rely on it", "follow Gymnasium's interface in this point"),
}

_OBSERVATION = ("space-unsupported", *(code for code in ADVICE if code.startswith("observation-")))
_ERRORS = tuple(code for code, (level, _, _) in ADVICE.items() if level == "error")

# What Gymnasium's checker says, by a part of its message, and the findings that say it better; with none it is no matter here.
BETTER: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("is different from the unwrapped", ()),
    ("-infinity", ()),
    ("is infinity", ()),
    ("symmetric and normalized", ()),
    ("stopped by", _ERRORS),
    ("super().reset", ("not-deterministic", "seed-unused", "reset-seed")),
    ("with a random seed", ("reset-seed",)),
    ("provide a `seed`", ("reset-seed",)),
    ("within the observation space", _OBSERVATION),
    ("The obs returned by", _OBSERVATION),
    ("Casting input x", _OBSERVATION),
    ("reward", ("reward-type", "reward-array", "reward-not-finite", "not-deterministic")),
    ("share an object", ("observation-reused",)),
    ("eterministic", ("not-deterministic", "state-leaks", "observation-not-finite")),
    ("equivalent", ("not-deterministic", "state-leaks")),
    ("after 1 step", ("one-step", "both-endings", "ending-type")),
    ("signal to be a boolean", ("ending-type",)),
    ("result", ("reset-returns", "step-returns")),
    ("2-tuple", ("reset-returns",)),
    ("dictionary", ("reset-returns", "step-returns")),
    ("step API", ("step-returns",)),
    ("Env.step", ("step-returns",)),
)


@dataclass(frozen=True)
class Finding:
    level: str
    code: str
    what: str
    effect: str  # on PPO
    fix: str


@dataclass
class Report:
    env: str
    findings: list[Finding] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    def add(self, code: str, what: str, level: str | None = None) -> None:
        """The first of a kind is enough: the others usually follow from it."""
        if code == "gymnasium" or code not in self.codes:
            usual, effect, fix = ADVICE[code]
            self.findings.append(Finding(level or usual, code, what, effect, fix))

    @property
    def codes(self) -> set[str]:
        return {finding.code for finding in self.findings}

    def count(self, level: str) -> int:
        return sum(finding.level == level for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        return {"env": self.env, "findings": [asdict(finding) for finding in self.findings], "summary": self.summary}

    def as_text(self) -> str:
        lines = []
        for finding in self.findings:
            lines.append(f"{finding.level}: {finding.what} [{finding.code}]")
            lines.append(f"    For PPO: {finding.effect}. To do: {finding.fix}.")
        counts = [f"{number} {level}{'s' * (number > 1)}" for level in LEVELS if (number := self.count(level))]
        lines.append(f"{self.env}: {', '.join(counts) or 'nothing found'}")
        return "\n".join(lines + [f"    {name:<15} {value}" for name, value in _overview(self.summary)])


def _overview(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if "observations" in summary:
        yield from (("observations", summary["observations"]), ("actions", summary["actions"]))
    if "action_mask" in summary:
        yield "action masks", f"found in {summary['action_mask']}; training uses them"
    if summary.get("episodes"):
        shortest, longest = summary["lengths"]
        mean, deviation = summary["return_mean"], summary["return_deviation"]
        length = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
        yield "random policy", f"return {mean:.2f} ± {deviation:.2f}, length {length}, episodes: {summary['episodes']}"
    if "step_microseconds" in summary:
        yield "time", f"step {summary['step_microseconds']:.1f} µs, reset {summary['reset_microseconds']:.1f} µs"
    yield "proxrl train", f"preset {summary['preset']}, {summary['num_envs']} environments, --vector {summary['vector']}"
