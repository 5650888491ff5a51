"""The findings of `proxrl check`: the level of each, its effect on PPO and how to fix it; and the report that collects them.

Levels: an error stops training or makes it meaningless, a warning makes training worse, a note is worth knowing.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from proxrl.envs.interface import EXPLANATIONS

LEVELS = ("error", "warning", "note")

# code → (level, effect on PPO, fix). docs/check.md repeats these texts; a test compares them.
ADVICE: dict[str, tuple[str, str, str]] = {
    "raises": ("error", "training stops with the same exception", "fix the exception; --debug prints its traceback"),
    "space-missing": ("error", *EXPLANATIONS["space-missing"]),
    "space-unsupported": (
        "error",
        "training can't start: there is no network for this space",
        "change the space, or convert it with a gymnasium.ObservationWrapper or ActionWrapper",
    ),
    "reset-returns": ("error", *EXPLANATIONS["reset-returns"]),
    "reset-seed": ("error", *EXPLANATIONS["reset-seed"]),
    "step-returns": ("error", *EXPLANATIONS["step-returns"]),
    "ending-type": ("error", *EXPLANATIONS["ending-type"]),
    "observation-structure": ("error", *EXPLANATIONS["observation-structure"]),
    "observation-shape": ("error", *EXPLANATIONS["observation-shape"]),
    "observation-dtype": (
        "warning",
        "the array is cast to the dtype of the space: integer dtypes drop fractions and wrap around",
        "return the dtype of the space",
    ),
    "observation-not-finite": (
        "error",
        "a single NaN or infinity makes the loss and all weights NaN, and the running observation statistics never recover",
        "find the division or overflow that causes it, or end the episode before the simulation diverges",
    ),
    "observation-outside": (
        "warning",
        "anything scaled by the bounds is wrong; a discrete value out of range stops the run or is taken for another value",
        "correct the bounds of the space, or clip the observation to them",
    ),
    "observation-reused": (
        "warning",
        "ProxRL copies observations at once, but frame stacking and anything else that keeps one sees its later values",
        "return a copy of the array",
    ),
    "observation-constant": (
        "note",
        "a constant carries no information for the policy",
        "remove it, unless it varies under a better policy",
    ),
    "observation-scale": (
        "note",
        "large inputs saturate the network and outweigh small ones",
        "keep --normalize-observations on, as in the preset for unknown environments, or rescale the observations",
    ),
    "image-channels": (
        "note",
        "with the wrong axis, the convolutions see rows of pixels as colors",
        "nothing if the assumption is right; otherwise use --image-channels",
    ),
    "image-not-recognized": (
        "warning",
        "an MLP must learn about each pixel separately, with far more weights than a convolutional network",
        "return bytes from 0 to 255 (uint8) with an axis for the channels: (height, width, channels)",
    ),
    "reward-type": ("error", *EXPLANATIONS["reward-type"]),
    "reward-array": (
        "warning",
        "NumPy has deprecated the use of arrays as numbers, so a later version will raise an error",
        "return a number, such as reward.item()",
    ),
    "reward-not-finite": (
        "error",
        "returns, advantages and then all weights become NaN",
        "keep the reward finite and within the range of 32-bit floats",
    ),
    "reward-scale": (
        "note",
        "the value loss and value clipping depend on the scale of the returns; "
        "in a shared network the value loss then outweighs the policy loss, or the reverse",
        "keep --normalize-rewards on, as in the preset for unknown environments, or rescale the rewards",
    ),
    "reward-zero": (
        "note",
        "all advantages are zero until random actions happen to reach a reward (a sparse task)",
        "shape the reward, start episodes closer to the goal, or raise --entropy-coef",
    ),
    "endless": (
        "warning",
        "no episode finishes, so no return is reported and an evaluation never ends",
        "add a time limit: gymnasium.wrappers.TimeLimit(env, max_episode_steps=...)",
    ),
    "both-endings": (
        "note",
        "terminated takes precedence, so a time-out counts as the end of the task and is not bootstrapped",
        "set truncated only if the time limit alone ends the episode, and terminated only if the task itself ends",
    ),
    "time-out-as-termination": (
        "warning",
        "the value after the last step counts as zero, so states near the time limit look worthless "
        "although nothing in the observation explains it",
        "report the time limit as truncated; if the task really ends then, add the remaining time to the observation",
    ),
    "one-step": (
        "warning",
        "there is no future to discount: the task is a bandit",
        "check the ending condition, if episodes should have more than one step",
    ),
    "not-deterministic": (
        "warning",
        "two runs with the same seed differ, so results can't be reproduced and a resumed run gives another result",
        "draw every random number from self.np_random, after super().reset(seed=seed)",
    ),
    "state-leaks": (
        "warning",
        "an episode depends on the one before it, which no observation shows, and runs can't be reproduced",
        "in reset, set every attribute that step changes",
    ),
    "seed-unused": (
        "note",
        "parallel environments all start in the same state and differ only through their actions",
        "draw the initial state from self.np_random if it should vary; otherwise change nothing",
    ),
    "action-whole-numbers": (
        "error",
        "the policy samples from a Gaussian, which can't produce integers",
        "use MultiDiscrete, or take floats and round them in the environment",
    ),
    "action-unbounded": (
        "note",
        "samples are never clipped, so rare large actions reach the environment",
        "give the Box finite bounds",
    ),
    "action-float64": ("note", "the policy samples in 32 bits, so the extra precision is unused", "use dtype float32"),
    "action-range-large": (
        "warning",
        "the policy starts as a Gaussian with mean 0 and standard deviation 1, so most of the range is never tried",
        "use bounds of [-1, 1] and scale in the environment: gymnasium.wrappers.RescaleAction(env, -1.0, 1.0)",
    ),
    "action-range-small": (
        "warning",
        "the policy starts as a Gaussian with mean 0 and standard deviation 1, so nearly every sample is clipped to a bound",
        "use bounds of [-1, 1] and scale in the environment: gymnasium.wrappers.RescaleAction(env, -1.0, 1.0)",
    ),
    "mask-shape": (
        "error",
        "training stops: the mask can't be applied to the action probabilities",
        "return a mask as action_space.sample(mask) takes it, or one flat array of bits, leaf by leaf of the action space",
    ),
    "mask-empty": (
        "error",
        "training stops: no action is left to sample",
        "allow at least one choice for every discrete part of the action, or end the episode one step earlier",
    ),
    "mask-missing": (
        "error",
        "training stops; if only the first reset returns no mask, training continues but never uses masks",
        "return a mask from every reset and step (all ones if everything is allowed); only the last step may omit it",
    ),
    "slow-step": (
        "note",
        "the environments run one after another and limit the speed of training",
        "try --vector workers",
    ),
    "close": ("warning", "a finished run ends with an error", "make close succeed, also when it is called twice"),
    "gymnasium": ("warning", "other tools and wrappers may rely on this part of the interface", "follow Gymnasium's API here"),
}

_OBSERVATION = ("space-missing", "space-unsupported", *(code for code in ADVICE if code.startswith("observation-")))
_ERRORS = tuple(code for code, (level, _, _) in ADVICE.items() if level == "error")

# (part of a message of Gymnasium's checker, findings that report the same thing more precisely). The message is dropped if one of
# the findings was reported; messages with an empty tuple don't matter for PPO and are always dropped.
COVERED_BY: tuple[tuple[str, tuple[str, ...]], ...] = (
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
    """One fault: what was observed, its effect on PPO and how to fix it."""

    level: str
    code: str
    what: str
    effect: str
    fix: str


@dataclass
class CheckReport:
    """The findings about one environment, and a summary of its spaces, episodes and speed."""

    env: str
    findings: list[Finding] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    def add(self, code: str, what: str, level: str | None = None) -> None:
        """Add a finding unless one with the same code is there: repeated findings usually have the same cause."""
        if code == "gymnasium" or code not in self.codes:
            default_level, effect, fix = ADVICE[code]
            self.findings.append(Finding(level or default_level, code, what, effect, fix))

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
            lines.append(f"    Effect on PPO: {finding.effect}. To fix: {finding.fix}.")
        counts = [f"{number} {level}{'s' * (number > 1)}" for level in LEVELS if (number := self.count(level))]
        lines.append(f"{self.env}: {', '.join(counts) or 'nothing found'}")
        return "\n".join(lines + [f"    {name:<15} {value}" for name, value in _summary_rows(self.summary)])


def _summary_rows(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each line of the printed summary."""
    if "observations" in summary:
        yield from (("observations", summary["observations"]), ("actions", summary["actions"]))
    if "action_mask" in summary:
        yield "action masks", f"found in {summary['action_mask']}; training uses them"
    if summary.get("episodes"):
        shortest, longest = summary["lengths"]
        mean, std = summary["return_mean"], summary["return_deviation"]
        length = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
        yield "random policy", f"return {mean:.2f} ± {std:.2f}, length {length}, episodes: {summary['episodes']}"
    if "step_microseconds" in summary:
        yield "time", f"step {summary['step_microseconds']:.1f} µs, reset {summary['reset_microseconds']:.1f} µs"
    yield "proxrl train", f"preset {summary['preset']}, {summary['num_envs']} environments, --vector {summary['vector']}"
