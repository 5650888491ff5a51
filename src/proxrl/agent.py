"""A trained policy to act with: `proxrl.load(run).act(obs)`."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxrl import checkpoint
from proxrl.build import CARRIED, build_compute, build_device
from proxrl.config import Config
from proxrl.errors import ProxRLError
from proxrl.policy.flat import FlatParameters
from proxrl.policy.policy import make_policy
from proxrl.runs import find_run
from proxrl.seeding import Purpose, generator
from proxrl.spaces import space_from_json
from proxrl.tree import tree_leaves, tree_map
from proxrl.types import Tree


class Agent:
    """Acts on one observation or on a batch. Its statistics are frozen, and it keeps what a memory needs between calls."""

    def __init__(self, config: Config, tensors: dict[str, Any], state: dict[str, Any]) -> None:
        self.config, self.step = config, int(state["step"])
        self.observation_space = space_from_json(state["observation_space"])
        self.action_space = space_from_json(state["action_space"])
        self.policy = make_policy(config, self.observation_space, self.action_space).to(build_device(config.device))
        self.policy.load_state_dict(
            {name.removeprefix("policy."): t for name, t in tensors.items() if name.startswith("policy.")}
        )
        self.compute = build_compute(config, self.policy, FlatParameters(self.policy, CARRIED))
        self.compute.freeze()
        self.rng = generator(config.seed, Purpose.EVALUATION)
        self.reset()

    def reset(self) -> None:
        """Forget the episode so far."""
        self.starts = True
        self.state = self.compute.initial_state(1)

    def act(self, obs: Tree, deterministic: bool = True) -> NDArray[Any] | Any:
        """The action for an observation, or one per row of a batch: the most likely, or a sample."""
        shape, given = self.observation_space.shape or (), np.shape(next(tree_leaves(obs)))
        if given[len(given) - len(shape) :] != shape or len(given) > len(shape) + 1:
            raise ProxRLError(f"the observation has shape {given}, but this agent takes {shape}, or {('N', *shape)} for a batch")
        single = len(given) == len(shape)
        rows = tree_map(lambda leaf: np.asarray(leaf)[None] if single else np.asarray(leaf), obs)
        count = len(next(tree_leaves(rows)))
        if self.starts:
            self.state, self.starts = self.compute.initial_state(count), False
            began = np.ones(count, np.bool_)
        else:
            began = np.zeros(count, np.bool_)
        noise = None if deterministic else self.policy.head.noise(self.rng, count)
        action, self.state = self.compute.act(rows, self.state, began, noise)
        answer = self.policy.head.to_env(action)
        return answer[0] if single else answer


def load(run: str | Path, checkpoint_name: str = "latest", device: str | None = None) -> Agent:
    """The agent of a run folder: of its latest checkpoint, or of `best`, or of `step-100000`."""
    folder = find_run(run)
    config = folder.config()
    path = folder.checkpoint_path(checkpoint_name)
    if not path.exists():
        there = sorted(entry.name.removesuffix(".safetensors") for entry in path.parent.glob("*.safetensors"))
        raise ProxRLError(f"{folder.path} has no checkpoint {checkpoint_name!r}; it has {', '.join(there) or 'none yet'}")
    tensors, state = checkpoint.load(path)
    return Agent(config if device is None else config.replace(device=device), tensors, state)
