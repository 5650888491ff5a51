"""The model card: a README.md with front matter for model hubs and a description of the file and its use."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from torch import Tensor

from proxrl import __version__
from proxrl.build import atari_options
from proxrl.config import Config
from proxrl.config.calls import parse_calls
from proxrl.config.parse import toml_value
from proxrl.envs.envpool import task_name
from proxrl.envs.masks import MASK
from proxrl.envs.registry import ATARI, DM, find_family
from proxrl.errors import printable
from proxrl.export.deployed import STATE, Input
from proxrl.look.agent import Agent
from proxrl.report.curves import band, read_curves
from proxrl.report.plot import sparkline
from proxrl.report.published import published
from proxrl.runs.folder import CARD_MARK, RunFolder
from proxrl.runs.metrics import RETURN
from proxrl.runs.origin import read_origin

# Settings of plugins that may contain secrets. They are left out, because cards are published.
PRIVATE = ("logger", "logger_kwargs", "callback", "callback_kwargs")

# Descriptions of outputs, by the first word of their name.
MEANINGS = {
    "action": "the mode of the distribution, as the environment takes it",
    "logits": "log-probabilities of all choices, entry by entry; log-odds of bits",
    "mean": "mean of the Gaussian, before clipping or tanh",
    "log_std": "logarithm of its standard deviation",
    "alpha": "first parameter of the Beta distribution between the bounds",
    "beta": "second parameter of the Beta distribution between the bounds",
    "value": "the critic's estimate, in the units of the rewards used in training",
    "next_state": "state of the memory, an input of the next step",
}

SESSION = """\
session = onnxruntime.InferenceSession("policy.onnx", providers=["CPUExecutionProvider"])
results = session.run(None, inputs)
outputs = dict(zip((output.name for output in session.get_outputs()), results))"""
MODULE = """\
policy = torch.export.load("policy.pt2").module()
outputs = policy(*map(torch.from_numpy, inputs.values()))"""


def model_card(
    folder: RunFolder,
    agent: Agent,
    inputs: Sequence[Input],
    outputs: Mapping[str, Tensor],
    file: str,
    checkpoint: str,
    scores: Mapping[str, Mapping[str, Any]],
    preparation: Mapping[str, Any],
) -> str:
    """Return the text of the card of `file`.

    `outputs` are the file's outputs for some rows, `scores` the summaries of its evaluation by kind, and `preparation` is the
    result of `observation_preparation`.
    """
    config = agent.config
    parts = [
        front_matter(config.env, scores),
        f"# PPO on {_plain(config.env)}",
        f"A policy trained by ProxRL with Proximal Policy Optimization: run {_code(f'{config.name}/seed{config.seed}')},"
        f" checkpoint {_code(checkpoint)}, after {agent.step:,} steps. `{file}` contains the whole policy: its inputs are"
        f" observations {'prepared as described below' if preparation else 'of the environment'}, its outputs are actions for it."
        " Normalization and scaling are included.",
        "## Use",
        f"```python\n{usage(file, inputs, list(outputs))}\n```",
        "Rows are independent, and a batch may have any number of them.",
        *_episodes(inputs),
        *_preparation(config.env, preparation),
        table(("input", "type", "shape"), ((one.name, one.dtype.name, _shape(one.shape)) for one in inputs)),
        table(
            ("output", "type", "shape", "description"),
            (
                (name, str(row.dtype).removeprefix("torch."), _shape(row.shape[1:]), MEANINGS[name.partition(".")[0]])
                for name, row in outputs.items()
            ),
        ),
        *_scores(config.env, scores),
        "## Training",
        *_origin(folder),
        *_curve(folder),
        "```\nproxrl train --config settings.toml\n```",
        "repeats the run. Settings that differ from ProxRL's defaults:",
        table(("setting", "value"), _changed(folder, config)),
        _versions(folder),
    ]
    return "\n\n".join(parts) + "\n"


def front_matter(env: str, scores: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the metadata by which hubs list and sort models. The score is that of deterministic actions, as the file's are."""
    name = _yaml(env)
    lines = ["---", CARD_MARK, "tags:", "- reinforcement-learning", "- ppo", "- proxrl", f"- {name}"]
    if "deterministic" in scores:
        score = scores["deterministic"]
        lines += [
            "model-index:",
            "- name: PPO",
            "  results:",
            "  - task:",
            "      type: reinforcement-learning",
            "      name: reinforcement-learning",
            "    dataset:",
            f"      name: {name}",
            f"      type: {name}",
            "    metrics:",
            "    - type: mean_reward",
            f'      value: "{score["mean"]:.2f} +/- {score["std"]:.2f}"',
            "      name: mean_reward",
            "      verified: false",
        ]
    return "\n".join([*lines, "---"])


def usage(file: str, inputs: Iterable[Input], outputs: Sequence[str]) -> str:
    """Return an example program that runs in the folder of the file."""
    onnx = file.endswith(".onnx")
    actions = [name for name in outputs if name.partition(".")[0] == "action"]
    return "\n".join(
        [
            "import numpy as np",
            f"import {'onnxruntime' if onnx else 'torch'}",
            "",
            "inputs = {  # one row of each; here placeholders",
            *(f"    {json.dumps(one.name)}: {_example(one)}," for one in inputs),
            "}",
            SESSION if onnx else MODULE,
            *(f"print({json.dumps(name)}, outputs[{json.dumps(name)}][0])" for name in actions),
        ]
    )


def _example(one: Input) -> str:
    """Return code for an array that is valid for the input: choices within their range, and a mask that allows everything."""
    shape, dtype = (1, *one.shape), f"np.{'bool_' if one.dtype == np.bool_ else one.dtype.name}"
    if one.name == MASK:
        return f"np.ones({shape}, {dtype})"
    if isinstance(one.space, spaces.Discrete) and one.space.start:
        return f"np.full({shape}, {int(one.space.start)}, {dtype})"
    if isinstance(one.space, spaces.MultiDiscrete) and one.space.start.any():
        return f"np.array({[one.space.start.tolist()]}, {dtype})"
    return f"np.zeros({shape}, {dtype})"


def _episodes(inputs: Iterable[Input]) -> list[str]:
    """Return how the state of a memory is passed on, if there is one."""
    names = [one.name for one in inputs if one.name.startswith(STATE)]
    if not names:
        return []
    pairs = ", ".join(f"`next_{name}` as `{name}`" for name in names)
    return [
        "The policy has a memory. In the first step of an episode, its state is zeros, as above. In every later step, pass on"
        f" what the step before returned: {pairs}. In a batch, set the rows of environments that begin an episode to zeros."
    ]


def observation_preparation(config: Config) -> dict[str, Any]:
    """Return the settings of what is done to observations before they are inputs of the file; empty for most runs."""
    names = ("action_repeat", "wrapper", "frame_stack")
    given = {name: getattr(config, name) for name in names if getattr(config, name) not in (None, 1)}
    if ":" in config.env:  # a custom environment, which may not be importable here
        return given
    family = find_family(config.env)
    if family is ATARI:
        options = dataclasses.asdict(atari_options(config))
        return {name: value for name, value in options.items() if name not in ("sign_rewards", "max_episode_steps")} | given
    return ({"flatten": "in the order of the keys"} if family is DM else {}) | given


def _preparation(env: str, preparation: Mapping[str, Any]) -> list[str]:
    if "screen_size" in preparation:
        return [*_atari_preparation(preparation), *_wrapping(preparation)]
    flat = [
        f"The observation is one float32 vector: the entries of the Dict observation of EnvPool's {_code(task_name(env))},"
        " flattened and concatenated in the order of their keys."
    ]
    stack = preparation.get("frame_stack")
    stacked = [
        f"The input is a stack of the environment's last {stack} observations, the oldest first; at the start of an episode, the"
        f" first observation is repeated {stack} times. Vectors are concatenated; arrays that are not images are flattened first."
        " Images are stacked along their channels, with the channels as the first axis: [channels, height, width]. Entries that"
        " are not of a Box, and action masks, are those of the newest observation."
    ]
    return [*flat * ("flatten" in preparation), *_wrapping(preparation), *stacked * (stack is not None)]


def _wrapping(preparation: Mapping[str, Any]) -> list[str]:
    repeat, calls = preparation.get("action_repeat"), parse_calls("wrapper", preparation.get("wrapper", ()))
    repeated = [f"Each action is repeated for {repeat} steps of the environment, or until the episode ends."]
    names = [f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.kwargs.items())})" for call in calls]
    wrapped = [
        f"The environment has these wrappers, the innermost first: {', '.join(map(_code, names))}. Observations must be as they"
        " change them, and actions pass through them."
    ]
    return repeated * (repeat is not None) + wrapped * bool(calls)


def _atari_preparation(preparation: Mapping[str, Any]) -> list[str]:
    return [
        "The observation is a stack of the last `frame_stack` preprocessed frames, the newest last, with zeros before the first"
        " one of a game. Each action is repeated for `frame_skip` frames. A preprocessed frame is the pixelwise maximum of the"
        " last two of these (`max_pool`), converted to gray (`grayscale`; otherwise red, green and blue are separate channels)"
        " and resized to `screen_size` pixels each way with area interpolation. A game starts with up to `noop_max` no-op frames,"
        " and with the fire action in games that need it (`fire_reset`), also after a lost life. With `episodic_life`, a lost"
        " life ended an episode in training.",
        table(("setting", "value"), ((name, toml_value(value)) for name, value in preparation.items())),
    ]


def _scores(env: str, scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = [
        (f"this policy, {kind}", f"{score['mean']:.2f} ± {score['std']:.2f}", f"{score['episodes']} episodes{_success(score)}")
        for kind, score in scores.items()
    ]
    for entry in published(env) if rows else ():
        steps = "" if entry.steps is None else f"{entry.steps:,} steps"
        rows.append((f"published: {entry.implementation}", entry.score(), steps))
    return ["## Scores", table(("", "return", "of"), rows)] if rows else []


def _success(score: Mapping[str, Any]) -> str:
    rate = score.get("success_rate")
    return "" if rate is None else f", success rate {rate:.0%}"


def _origin(folder: RunFolder) -> list[str]:
    origin = read_origin(folder)
    return [] if origin is None else [f"Training started with the weights and statistics of {_code(str(origin.public()))}."]


def _curve(folder: RunFolder) -> list[str]:
    curves = read_curves(folder, [RETURN])
    if RETURN not in curves:
        return []
    line = band([curves[RETURN]])
    return [f"Return over {line.x[-1]:,.0f} steps: `{sparkline(line.mean)}` {line.mean[0]:.4g} → {line.mean[-1]:.4g}"]


def public_origin(folder: RunFolder, init_from: str) -> str:
    """Return the name of the run that --init-from names, which may be a path on this machine."""
    origin = read_origin(folder)
    return Path(init_from).name if origin is None else origin.name


def _changed(folder: RunFolder, config: Config) -> list[tuple[str, str]]:
    defaults = Config()
    if config.init_from is not None:
        config = config.replace(init_from=public_origin(folder, config.init_from))
    fields = [spec.name for spec in dataclasses.fields(config) if spec.name not in PRIVATE]
    return [(name, toml_value(getattr(config, name))) for name in fields if getattr(config, name) != getattr(defaults, name)]


def _versions(folder: RunFolder) -> str:
    versions = folder.read_status().get("versions")
    if not isinstance(versions, dict) or not versions:
        versions = {"proxrl": __version__}
    return "Trained with " + ", ".join(_plain(f"{name} {version}") for name, version in versions.items()) + "."


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. Cells of a single word are formatted as code."""
    lines = [heading, ["---"] * len(heading)]
    lines += [[_plain(cell) if " " in cell or not cell else _code(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shape(shape: Sequence[int]) -> str:
    return f"[{','.join(['batch', *map(str, shape)])}]"


def _code(text: str) -> str:
    """Return Markdown that shows the text as code, also in a table."""
    return "`" + printable(text).replace("`", "'").replace("|", "\\|") + "`"


def _plain(text: str) -> str:
    """Return Markdown that shows the text literally."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#&" else char for char in printable(text))


def _yaml(text: str) -> str:
    """Return a quoted YAML string, with unprintable characters escaped."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)
