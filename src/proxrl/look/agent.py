"""`proxrl.load(run)` returns an Agent, a trained policy to act with: `agent.act(obs)`."""

import contextlib
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Dict
from numpy.typing import NDArray

from proxrl.build import build_compute, build_device
from proxrl.common.seeding import Purpose, generator
from proxrl.common.tree import tree_leaves, tree_map
from proxrl.config import Config
from proxrl.config.code import ENVIRONMENT_SETTINGS, TRAINING_SETTINGS
from proxrl.engine.autograd import TorchCompute
from proxrl.engine.flat import FlatParameters
from proxrl.envs.buffers import stored_dtype
from proxrl.envs.mask_wrapper import split_mask
from proxrl.envs.masks import MASK, flatten_mask
from proxrl.envs.spaces import Masked, map_observation, space_from_json, space_tree, wrong_values
from proxrl.envs.stacking import stack_size
from proxrl.errors import ProxRLError
from proxrl.look.action_distribution import ActionDistribution, count_rows
from proxrl.look.agent_frames import AgentFrames
from proxrl.policy.distributions import Distribution
from proxrl.policy.heads import env_actions
from proxrl.policy.networks import add_value_streams, make_policy
from proxrl.runs.folder import RUNS_DIR, RunFolder
from proxrl.runs.lookup import find_run
from proxrl.types import State, Tree


class Agent:
    """A trained policy. Its statistics are frozen, and it keeps the state of a memory between calls of `act`."""

    def __init__(self, config: Config, tensors: dict[str, Any], state: dict[str, Any]) -> None:
        self.config, self.step = config, int(state["step"])
        self.observation_space = space_from_json(state["observation_space"])
        self.action_space = space_from_json(state["action_space"])
        self.policy = make_policy(config, self.observation_space, self.action_space).to(build_device(config.device))
        weights = {name.removeprefix("policy."): t for name, t in tensors.items() if name.startswith("policy.")}
        if config.value is None:  # bonuses may have added value streams
            add_value_streams(self.policy, len(weights.get("value.weight", [0])), config.seed)
        try:
            self.policy.load_state_dict(weights)
        except RuntimeError as error:
            raise ProxRLError(
                f"the checkpoint does not fit the networks that its settings describe ({str(error).splitlines()[-1].strip()});"
                " was it made by another version, or has the code of your custom networks changed?"
            ) from error
        self.compute = build_compute(config, self.policy, FlatParameters(self.policy.groups()))
        self.rng = generator(config.seed, Purpose.EVALUATION)
        self.untrusted: dict[str, Any] = {}  # settings of somebody else's run that name code, which must not be imported
        self.frames = AgentFrames(stack_size(config.env, config.frame_stack))
        self.reset()

    def __repr__(self) -> str:
        return f"<Agent of {self.config.env} at step {self.step:,}: {self.observation_space} to {self.action_space}>"

    def reset(self, envs: Any = None) -> None:
        """Start a new episode: the next observation is its first. `envs` names the rows of a batch of which this is true, as a
        mask [N], such as `terminated | truncated`, or by their numbers; the others continue.
        """
        if envs is None:
            self.starts: NDArray[np.bool_] | None = None  # [N] whether the next observations begin an episode; None if all do
            self.state: State = ()
            self.noise: Iterator[NDArray[np.float32]] = iter(())
            self.frames.reset()
        elif self.starts is not None:
            begun = chosen_rows(envs, len(self.starts))
            self.starts |= begun
            self.frames.restart(begun)

    def act(self, obs: Tree, deterministic: bool = True, mask: Any = None) -> Tree:
        """Return the action for an observation, or one per row of a batch: the distribution's mode, or a sample.

        Agents that were trained with action masks need `mask`, the environment's `info["action_mask"]`. Agents that were trained
        with --frame-stack take stacks, or the environment's observations one after the other and `reset` between episodes. Those
        with a memory need every observation of an episode in its order, and `reset` between episodes. Samples of agents that were
        trained with --noise gsde keep their noise for --noise-interval calls, or until `reset`.
        """
        rows, single = self._rows(obs, mask, advance=True)
        count = count_rows(rows)
        state, starts = self._memory(count)
        noise = None if deterministic else self._noise(count)
        self.policy.guard.check(rows)
        sample, self.state = self.compute.act(rows, state, starts, noise)
        self.starts = np.zeros(count, np.bool_)
        actions = env_actions(self.policy.head, sample)
        return tree_map(lambda leaf: leaf[0], actions) if single else actions

    def value(self, obs: Tree) -> Any:
        """Return the value of an observation, a number, or those of a batch [N]: the discounted sum of future rewards that the
        critic expects, in the scale of training (after `reward_scale` and `normalize_rewards`).

        Like `distribution` and `log_prob`, it leaves the memory and the stack of observations that `act` keeps as they are. With
        either, call it before `act` with the same observation, which would be seen twice afterwards.
        """
        _, value, single = self._outputs(*self._rows(obs, None, needs_mask=False))
        values = value.cpu().numpy()
        return values[0].item() if single else values

    def distribution(self, obs: Tree, mask: Any = None) -> ActionDistribution:
        """Return the distribution from which `act` takes the action for an observation, or those for the rows of a batch.

        It has `mode`, `sample`, `log_prob` and `entropy`; and `probabilities`, or `mean` and `std`, as the action space has them.
        """
        rows, single = self._rows(obs, mask)
        self.policy.guard.check(rows)
        distribution, _, _ = self._outputs(rows, single)
        return ActionDistribution(distribution, self.policy.head, self.action_space, self.rng, single)

    def log_prob(self, obs: Tree, action: Tree, mask: Any = None) -> Any:
        """Return the log-probability of an action of the environment, a number, or one for each row of a batch [N]."""
        return self.distribution(obs, mask).log_prob(action)

    def _noise(self, count: int) -> NDArray[np.float32]:
        """Return noise [N, noise_size]; some heads keep the same for several steps, as in training."""
        noise = next(self.noise, None)
        if noise is None or len(noise) != count:
            head = self.policy.head
            self.noise = repeat(head.noise(self.rng, count), head.noise_interval)
            noise = next(self.noise)
        return noise

    def _memory(self, count: int) -> tuple[State, NDArray[np.bool_]]:
        """Return the state of the memory for the next observations [N, ...], and which of these begin an episode."""
        if self.starts is None or (len(self.starts) != count and not self.policy.recurrent):
            return self.compute.initial_state(count), np.ones(count, np.bool_)
        if len(self.starts) != count:
            raise ProxRLError(
                f"there are {count} observations, but there were {len(self.starts)} before, which the agent's memory is about;"
                " call agent.reset() before other episodes"
            )
        return self.state, self.starts

    @torch.no_grad()
    def _outputs(self, rows: Tree, single: bool) -> tuple[Distribution, torch.Tensor, bool]:
        """Return the distributions and values of rows of observations."""
        device = next(self.policy.parameters()).device

        def tensor(array: NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        state, starts = self._memory(count_rows(rows))
        precision = self.compute.precision if isinstance(self.compute, TorchCompute) else contextlib.nullcontext
        with precision():
            distribution, value, _ = self.policy(tree_map(tensor, rows), state, tensor(starts))
        return distribution, value[:, 0].float(), single

    def _rows(self, obs: Tree, mask: Any, needs_mask: bool = True, advance: bool = False) -> tuple[Tree, bool]:
        """Return the observation as rows for the policy, and whether it was a single one, as its shape shows.

        Values do not depend on masks: for them, everything is allowed. `advance` if the next observation follows this one.
        """
        space = self.observation_space
        if not isinstance(space, Masked):
            return _in_rows(space, self._filled(space, self.frames.stacked(space, obs, advance)))
        key = MASK if self.config.action_mask in ("auto", "info", "off") else self.config.action_mask
        if mask is None and isinstance(obs, dict) and key in obs:
            # If only the actor's keys are there, they stay a dict even if there is just one: those of the critic may be missing.
            rest = {name: value for name, value in obs.items() if name != key}
            obs, mask = (rest, obs[key]) if set(rest) == set(self.config.actor_keys or ()) else split_mask(obs, key)
        if mask is None and needs_mask:
            raise ProxRLError('this agent was trained with action masks: call act(obs, mask=info["action_mask"])')
        obs = self.frames.stacked(space["observation"], obs, advance)
        rows, single = _in_rows(space["observation"], self._filled(space["observation"], obs))
        if not needs_mask:
            return {"observation": rows, MASK: np.ones((count_rows(rows), space.choices), np.int8)}, single
        try:
            masks = [mask] if single else list(mask)
            if any(each is None for each in masks):  # perhaps one mask of a Tuple of actions, for a whole batch
                raise ValueError("a mask is None; give one for each observation")
            bits = [flatten_mask(self.action_space, each) for each in masks]
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise ProxRLError(f"the mask does not fit the action space {self.action_space} ({error})") from None
        if len(bits) != count_rows(rows):
            raise ProxRLError(f"there are {len(bits)} masks for {count_rows(rows)} observations; give one for each")
        return {"observation": rows, MASK: np.stack(bits)}, single

    def _filled(self, space: gymnasium.Space, obs: Tree) -> Tree:
        """Return the observation with zeros for missing keys that only the critic uses, which exist in training only."""
        keys = self.config.actor_keys
        if not keys or not isinstance(space, Dict) or not isinstance(obs, dict) or any(key not in obs for key in keys):
            return obs
        value, leaf = next(tree_leaves(obs[keys[0]])), next(tree_leaves(space_tree(space[keys[0]])))
        rows = np.shape(value)[: np.ndim(value) - len(leaf.shape)]

        def zeros(part: gymnasium.Space) -> NDArray[Any]:
            return np.full((*rows, *(part.shape or ())), getattr(part, "start", 0), part.dtype)

        return obs | {key: tree_map(zeros, space_tree(space[key])) for key in space if key not in obs}


def chosen_rows(envs: Any, count: int) -> NDArray[np.bool_]:
    """Return the mask [count] of rows that are given as a mask or by their numbers."""
    given = np.asarray(envs)
    if given.dtype == np.bool_ and given.shape == (count,):
        return given
    chosen = np.zeros(count, np.bool_)
    try:
        if given.dtype == np.bool_:
            raise IndexError
        chosen[given.astype(np.int64, casting="same_kind") if given.size else []] = True
    except (IndexError, TypeError, ValueError):
        raise ProxRLError(
            f"agent.reset({envs}): give a mask of shape ({count},), or numbers from 0 to {count - 1}: the rows of the batch"
            " in which an episode begins"
        ) from None
    return chosen


def _in_rows(space: gymnasium.Space, obs: Tree) -> tuple[Tree, bool]:
    """Check an observation or a batch of them; return it as rows, and whether it was a single one."""
    singles: set[bool] = set()

    def check(leaf: gymnasium.Space, value: Any) -> NDArray[Any]:
        array, shape = np.asarray(value), leaf.shape or ()
        if array.shape[array.ndim - len(shape) :] != shape or array.ndim > len(shape) + 1:
            raise ProxRLError(
                f"the observation has shape {array.shape}, but this agent takes {shape},"
                f" or ({', '.join(map(str, ('N', *shape)))}) for a batch"
            )
        singles.add(array.ndim == len(shape))
        wrong = wrong_values(leaf, array)
        if wrong is not None:
            raise ProxRLError(f"the observation holds {array[wrong][0]}, which is not in {leaf}")
        # In the data type that environments store, because torch hardly supports unsigned integers other than bytes.
        return array.astype(stored_dtype(leaf), copy=False)

    arrays = map_observation(check, space, obs)
    if len(singles) != 1:
        raise ProxRLError("some entries of the observation are a batch and some are not")
    single = singles.pop()
    return (tree_map(lambda leaf: leaf[None], arrays) if single else arrays), single


def load(
    run: str | Path,
    checkpoint_name: str = "latest",
    device: str | None = None,
    runs_dir: str | Path = RUNS_DIR,
    trust: bool = False,
) -> Agent:
    """Return the agent of a run: of its checkpoint `latest`, `best`, or for example `step-100000`.

    `trust` allows a run that somebody else has made to import the code that its settings name, from now on.
    """
    return load_changed(find_run(run, runs_dir), checkpoint_name, {} if device is None else {"device": device}, trust)


def load_changed(folder: RunFolder, checkpoint_name: str, changes: dict[str, Any], trust: bool = False) -> Agent:
    """Return what `load` does, with changed settings that affect how the policy is computed, but not the policy."""
    # The code of the environment is imported only to play episodes, see `env_of`.
    config, untrusted = folder.config_for(trust, unused=ENVIRONMENT_SETTINGS | TRAINING_SETTINGS)
    agent = Agent(config.replace(**changes), *folder.load_checkpoint(checkpoint_name))
    agent.untrusted = untrusted
    return agent
