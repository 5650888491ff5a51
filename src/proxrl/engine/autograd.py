"""Any policy on any device, by torch's autograd."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxrl.common.chunks import chunk_slices
from proxrl.common.tree import tree_leaves, tree_map
from proxrl.engine.api import Evaluation, Outputs
from proxrl.engine.flat import FlatParameters
from proxrl.engine.frames import FrameBuffer, FrameRows
from proxrl.policy.policy import Policy, PolicyOutputs
from proxrl.types import ActingOutputs, Array, Batch, Rollout, State, Tree


class TorchCompute:
    """Any policy on any device, by autograd."""

    library: ClassVar[Any] = torch

    def __init__(self, policy: Policy, parameters: FlatParameters, precision: str = "float32", compiled: bool = False) -> None:
        self.policy, self.parameters = policy, parameters
        self.device = parameters.values.device
        self.outputs: Outputs | None = None
        self.features: Tensor | None = None
        lower = precision == "bfloat16"
        self.precision = functools.partial(torch.autocast, self.device.type, torch.bfloat16, enabled=lower)
        for network in (policy.actor, policy.critic):
            if compiled and network is not None:
                network.compile()
        self.freeze()

    def freeze(self) -> None:
        """Statistics are read from the policy's buffers, which change only between iterations."""

    def initial_state(self, num_envs: int) -> State:
        return self.policy.initial_state(num_envs)

    @torch.no_grad()
    def act(
        self,
        obs: Tree,
        state: State,
        starts: NDArray[np.bool_],
        noise: NDArray[np.float32] | None,
        outputs: ActingOutputs | None = None,
    ) -> tuple[NDArray[Any], State]:
        with_value = self.policy.acts_with_value if outputs is not None else self.policy.recurrent
        with self.precision():
            if with_value:
                distribution, value, state, _ = self.policy.core(self.preprocessed(obs), state, self.array(starts))
            else:
                distribution, state = self.policy.act(self.preprocessed(obs), state, self.array(starts))
        action = distribution.mode() if noise is None else distribution.sample(self.array(noise))
        if with_value and outputs is not None:
            outputs.append((distribution.log_prob(action), value.float()))
        return action.cpu().numpy(), state

    @torch.no_grad()
    def evaluate(self, rollout: Rollout) -> Evaluation:
        steps, num_envs = rollout.reward.shape
        rows = self.policy.preprocess(tree_map(self.rows, rollout.obs))
        obs = tree_map(lambda leaf: leaf[:-num_envs], rows)
        action = self.array(rollout.action).flatten(0, 1)
        outputs = rollout.outputs or self.evaluate_chunks(rows, action)
        log_probs, values = (torch.cat(column) for column in zip(*outputs, strict=True))
        last_rows, last_state = tree_map(lambda leaf: dense(leaf[-num_envs:]), rows), tuple(s[-1] for s in rollout.states)
        last = self.values(last_rows, last_state, self.array(rollout.starts[-1]))
        value = torch.cat([values, last]).view(steps + 1, num_envs, -1)
        next_value = value[1:].clone()
        t, n = (self.array(index) for index in rollout.final_index)
        if rollout.final_obs is not None:
            next_value[t, n] = self.values(self.preprocessed(rollout.final_obs), rollout.final_state, None)
        else:
            next_value[t, n] = value[t, n]
        return Evaluation(obs, action, log_probs.view(steps, num_envs), value, next_value)

    def evaluate_chunks(self, rows: Tree, action: Tensor) -> ActingOutputs:
        """Compute log-probabilities and values chunk by chunk: the first layer of a network on images takes more memory than all
        images of a rollout.
        """
        outputs = []
        for chunk in chunks(rows, len(action)):
            result = self.core(tree_map(lambda leaf, chunk=chunk: dense(leaf[chunk]), rows), (), None)
            outputs.append((result.distribution.log_prob(action[chunk]), result.value))
        return outputs

    def core(self, obs: Tree, state: State, starts: Tensor | None, perturbation: tuple[Tensor, ...] = ()) -> PolicyOutputs:
        """Run the networks in the run's precision. Values are float32 again, because the loss subtracts nearly equal numbers."""
        with self.precision():
            outputs = self.policy.core(obs, state, starts, perturbation)
        return outputs._replace(value=outputs.value.float())

    def values(self, obs: Tree, state: State, starts: Tensor | None) -> Tensor:
        with self.precision():
            return self.policy.values(obs, state, starts).float()

    def rows(self, leaf: Any) -> Any:
        """Reshape observations [T + 1, N, ...] to rows [(T + 1) * N, ...]."""
        if isinstance(leaf, FrameBuffer):
            return leaf.rows(self.device)
        return self.array(leaf.reshape(-1, *leaf.shape[2:]))

    def preprocessed(self, obs: Tree) -> Any:
        return self.policy.preprocess(tree_map(self.array, obs))

    def array(self, values: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        if self.device.type == "cuda":  # a copy from pinned memory does not block
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)

    def forward(self, batch: Batch) -> Outputs:
        distribution, value, _, self.features = self.core(batch.obs, batch.state, batch.starts, batch.perturbation)
        self.outputs = Outputs(distribution.log_prob(batch.action), distribution.entropy(), value)
        return Outputs(*(output.detach() for output in self.outputs))

    def backward(self, gradient: Outputs, terms: Sequence[Array], losses: Sequence[Tensor]) -> None:
        values = torch.stack([*terms, *(loss.detach() for loss in losses)])
        self.parameters.terms[: len(values)] += values
        assert self.outputs is not None
        # Some outputs depend on no parameter, such as the entropy of a fixed standard deviation.
        pairs = [(output, slope) for output, slope in zip(self.outputs, gradient, strict=True) if output.requires_grad]
        pairs += [(loss, torch.ones_like(loss)) for loss in losses if loss.requires_grad]
        if pairs:  # none in an empty share of a minibatch, if all but the memory is frozen
            outputs, slopes = zip(*pairs, strict=True)
            torch.autograd.backward(outputs, slopes)
        self.outputs = self.features = None  # frees the autograd graph


def chunks(rows: Tree, count: int) -> Iterator[slice]:
    """Split the first `count` rows into consecutive chunks that fit into memory."""
    numbers = sum(leaf.row_size if isinstance(leaf, FrameRows) else leaf[0].numel() for leaf in tree_leaves(rows))
    return chunk_slices(count, numbers)


def dense(leaf: Any) -> Tensor:
    """Return rows as one tensor, also if they are frames that are stored once."""
    return leaf.dense() if isinstance(leaf, FrameRows) else leaf
