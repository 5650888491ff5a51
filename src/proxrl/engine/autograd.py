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
from proxrl.engine.descent import microbatches
from proxrl.engine.flat import FlatParameters
from proxrl.engine.frames import FrameBuffer, FrameRows
from proxrl.engine.shards import Shards
from proxrl.policy.policy import Policy, PolicyOutputs
from proxrl.types import ActingOutputs, Array, Batch, Rollout, State, Tree


class TorchCompute:
    """Any policy on any device, by autograd."""

    library: ClassVar[Any] = torch

    def __init__(
        self,
        policy: Policy,
        parameters: FlatParameters,
        precision: str = "float32",
        compiled: bool = False,
        shards: Shards | None = None,
    ) -> None:
        self.policy, self.parameters, self.shards = policy, parameters, shards or Shards()
        self.device = parameters.values.device
        self.outputs: list[Outputs] = []  # of the last `forward`, one for each part of the minibatch
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
        inputs, begins = self.preprocessed(obs), self.array(starts)
        numbers = None if noise is None else self.array(noise)

        @torch.no_grad()  # which other threads do not inherit
        def act_on(rows: slice) -> tuple[Tensor, ...]:
            part = tree_map(lambda leaf: leaf[rows], inputs), tuple(tensor[rows] for tensor in state), begins[rows]
            with self.precision():
                if with_value:
                    distribution, value, after, _ = self.policy.core(*part)
                else:
                    distribution, after = self.policy.act(*part)
            action = distribution.mode() if numbers is None else distribution.sample(numbers[rows])
            computed = (distribution.log_prob(action), value.float()) if with_value else ()
            return action, *computed, *after

        columns = zip(*self.shards.map(act_on, self.shards.rows(len(starts))), strict=True)
        action, *rest = (column[0] if len(column) == 1 else torch.cat(column) for column in columns)
        if with_value:
            log_prob, value, *rest = rest
            if outputs is not None:
                outputs.append((log_prob, value))
        return action.cpu().numpy(), tuple(rest)

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

        @torch.no_grad()  # which other threads do not inherit
        def evaluate_chunk(chunk: slice) -> tuple[Tensor, Tensor]:
            result = self.core(tree_map(lambda leaf: dense(leaf[chunk]), rows), (), None)
            return result.distribution.log_prob(action[chunk]), result.value

        return self.shards.map(evaluate_chunk, chunks(rows, len(action)))

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
        parts = list(microbatches(batch, self.shards.count)) or [batch]
        results = self.shards.map(self._forward, parts)
        self.outputs = [outputs for outputs, _ in results]
        self.features = results[0][1] if len(parts) == 1 else None
        return Outputs(*(torch.cat(columns).detach() for columns in zip(*self.outputs, strict=True)))

    def _forward(self, batch: Batch) -> tuple[Outputs, Tensor]:
        distribution, value, _, features = self.core(batch.obs, batch.state, batch.starts, batch.perturbation)
        return Outputs(distribution.log_prob(batch.action), distribution.entropy(), value), features

    def backward(self, gradient: Outputs, terms: Sequence[Array], losses: Sequence[Tensor]) -> None:
        values = torch.stack([*terms, *(loss.detach() for loss in losses)])
        self.parameters.terms[: len(values)] += values
        sizes = [len(outputs.log_prob) for outputs in self.outputs]
        slopes = [Outputs(*columns) for columns in zip(*(slope.split(sizes) for slope in gradient), strict=True)]
        extra = [(loss, torch.ones_like(loss)) for loss in losses if loss.requires_grad]
        if len(sizes) == 1:
            _backward([*_pairs(self.outputs[0], slopes[0]), *extra])
        else:
            _backward(extra)
            self._add_gradients([_pairs(*part) for part in zip(self.outputs, slopes, strict=True)])
        self.outputs, self.features = [], None  # frees the autograd graph

    def _add_gradients(self, parts: list[list[tuple[Tensor, Tensor]]]) -> None:
        """Compute the gradients of all parts, each in its thread, and add them in the order of the parts: a sum in the order in
        which threads finish would differ from run to run.
        """
        learning = [parameter for parameter in self.policy.parameters() if parameter.requires_grad]

        def gradients(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor | None, ...]:
            outputs, slopes = zip(*pairs, strict=True)
            result: tuple[Tensor | None, ...] = torch.autograd.grad(outputs, learning, slopes, allow_unused=True)
            return result

        for results in self.shards.map(gradients, filter(None, parts)):
            for parameter, result in zip(learning, results, strict=True):
                if result is not None:
                    assert parameter.grad is not None  # a view of the flat gradient
                    parameter.grad += result


def _pairs(outputs: Outputs, slopes: Outputs) -> list[tuple[Tensor, Tensor]]:
    """Return outputs and the loss's slopes, without outputs that depend on no parameter, such as the entropy of a fixed standard
    deviation.
    """
    return [(output, slope) for output, slope in zip(outputs, slopes, strict=True) if output.requires_grad]


def _backward(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    if pairs:  # none in an empty share of a minibatch, if all but the memory is frozen
        outputs, slopes = zip(*pairs, strict=True)
        torch.autograd.backward(outputs, slopes)


def chunks(rows: Tree, count: int) -> Iterator[slice]:
    """Split the first `count` rows into consecutive chunks that fit into memory."""
    numbers = sum(leaf.row_size if isinstance(leaf, FrameRows) else leaf[0].numel() for leaf in tree_leaves(rows))
    return chunk_slices(count, numbers)


def dense(leaf: Any) -> Tensor:
    """Return rows as one tensor, also if they are frames that are stored once."""
    return leaf.dense() if isinstance(leaf, FrameRows) else leaf
