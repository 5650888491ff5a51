"""Small MLP policies on a CPU, forward and backward written out in numpy.

For networks of a few thousand weights the arithmetic takes a quarter of the time that autograd takes to record and replay
it. The arrays here are views of the torch policy's own parameters, gradients and statistics: nothing is copied, and
everything else (checkpoints, averaging over ranks, clipping, Adam) neither knows nor cares.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from proxrl.collect.normalize import EPSILON
from proxrl.policy.compute import Evaluation, Outputs
from proxrl.policy.encoders import MLP
from proxrl.policy.flat import FlatParameters
from proxrl.policy.heads import CategoricalHead, GaussianHead
from proxrl.policy.memory import NoMemory, State
from proxrl.policy.policy import Policy
from proxrl.policy.preprocess import Flatten, OneHot, Whiten
from proxrl.types import Array, Batch, Rollout

Floats = NDArray[np.float32]

# From this size on, five cheap passes over an array beat one expensive one.
MANY = 2048


def _array(tensor: Tensor | None) -> Floats:
    assert tensor is not None
    return tensor.detach().numpy()


def _tanh_(x: Floats) -> Floats:
    """tanh in place. For many numbers as 2 / (1 + exp(-2x)) - 1: numpy has vector instructions for exp but, on many CPUs,
    none for tanh.
    """
    if x.size < MANY:
        return np.tanh(x, out=x)
    x *= -2
    with np.errstate(over="ignore"):  # where it is infinite, the result is -1, as it should be
        np.exp(x, out=x)
    x += 1
    np.divide(2, x, out=x)
    x -= 1
    return x


class _Network:
    """A stack of linear layers with an activation between them."""

    def __init__(self, encoder: MLP, output: nn.Linear) -> None:
        linear = [*encoder.layers, output]
        self.weights = [_array(layer.weight) for layer in linear]
        self.biases = [_array(layer.bias) for layer in linear]
        self.weight_gradients = [_array(layer.weight.grad) for layer in linear]
        self.bias_gradients = [_array(layer.bias.grad) for layer in linear]
        self.tanh = encoder.activation == "tanh"
        self.inputs: list[Floats] = []

    def forward(self, inputs: Floats) -> Floats:
        """Keeps the input of every layer for `backward`."""
        self.inputs = []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            if self.inputs:
                inputs = _tanh_(inputs) if self.tanh else np.maximum(inputs, 0, out=inputs)
            self.inputs.append(inputs)
            inputs = np.dot(inputs, weight.T)
            inputs += bias
        return inputs

    def backward(self, gradient: Floats) -> None:
        """From the gradient at the output to the gradients of all weights and biases."""
        for layer in reversed(range(len(self.weights))):
            inputs = self.inputs[layer]
            np.dot(gradient.T, inputs, out=self.weight_gradients[layer])
            np.add.reduce(gradient, axis=0, out=self.bias_gradients[layer])
            if layer:
                gradient = np.dot(gradient, self.weights[layer])
                gradient *= 1 - inputs * inputs if self.tanh else inputs > 0


class _Categorical:
    def __init__(self, head: CategoricalHead) -> None:
        self.linear = head.linear

    def freeze(self) -> None:
        """Nothing but the network decides."""

    def act(self, logits: Floats, noise: Floats | None) -> NDArray[np.int64]:
        chosen: NDArray[np.int64] = (logits if noise is None else logits + noise).argmax(1)
        return chosen

    def forward(self, logits: Floats, action: NDArray[np.int64]) -> tuple[Floats, Floats]:
        shifted = logits - logits.max(1, keepdims=True)
        exponential = np.exp(shifted)
        total = exponential.sum(1, keepdims=True)
        self.log_probs = shifted - np.log(total)
        self.probs = exponential / total
        self.entropy = -np.einsum("ij,ij->i", self.probs, self.log_probs)
        self.chosen = np.arange(len(action)), action
        return self.log_probs[self.chosen], self.entropy

    def backward(self, log_prob: Floats, entropy: Floats) -> Floats:
        surprise: Floats = self.log_probs + self.entropy[:, None]
        surprise *= entropy[:, None]
        surprise += log_prob[:, None]
        surprise *= -self.probs
        surprise[self.chosen] += log_prob
        return surprise


class _Gaussian:
    def __init__(self, head: GaussianHead) -> None:
        self.linear = head.linear
        self.log_std, self.log_std_gradient = _array(head.log_std), _array(head.log_std.grad)

    def freeze(self) -> None:
        self.std = np.exp(self.log_std)

    def act(self, mean: Floats, noise: Floats | None) -> Floats:
        return mean if noise is None else noise * self.std + mean

    def forward(self, mean: Floats, action: Floats) -> tuple[Floats, Floats]:
        self.inverse_std = np.exp(-self.log_std)
        self.scaled = (action - mean) * self.inverse_std
        normaliser = self.log_std.sum() + np.float32(0.5 * math.log(2 * math.pi) * len(self.log_std))
        log_prob = np.einsum("ij,ij->i", self.scaled, self.scaled) * np.float32(-0.5) - normaliser
        return log_prob, np.full(len(mean), normaliser + np.float32(0.5 * len(self.log_std)))

    def backward(self, log_prob: Floats, entropy: Floats) -> Floats:
        np.dot(log_prob, self.scaled * self.scaled - 1, out=self.log_std_gradient)
        self.log_std_gradient += entropy.sum()
        return self.scaled * self.inverse_std * log_prob[:, None]


class NumpyCompute:
    """`Compute` for separate MLPs and a categorical or Gaussian head."""

    library: ClassVar[Any] = np

    @staticmethod
    def supports(policy: Policy) -> bool:
        """Exact types: a subclass may compute something else."""
        parts = policy.preprocess, policy.actor, policy.critic, policy.memory, policy.head
        return all(type(part) in (Flatten, Whiten, OneHot, MLP, NoMemory, CategoricalHead, GaussianHead) for part in parts)

    def __init__(self, policy: Policy, parameters: FlatParameters) -> None:
        self.policy = policy
        self.carried = parameters.carried.numpy()
        self.actor = _Network(policy.actor, policy.head.linear)
        self.critic = _Network(policy.critic, policy.value)
        head = policy.head
        self.head = _Categorical(head) if isinstance(head, CategoricalHead) else _Gaussian(head)
        self.freeze()

    def freeze(self) -> None:
        self.head.freeze()
        self.preprocess = _preprocess(self.policy.preprocess)

    def initial_state(self, num_envs: int) -> State:
        return self.policy.memory.initial_state(num_envs)

    def act(
        self,
        obs: NDArray[Any],
        state: State,
        starts: NDArray[np.bool_],
        noise: Floats | None,
    ) -> tuple[NDArray[Any], State]:
        return self.head.act(self.actor.forward(self.preprocess(obs)), noise), state

    def evaluate(self, rollout: Rollout) -> Evaluation:
        steps, num_envs = rollout.reward.shape
        rows = self.preprocess(rollout.obs.reshape(-1, *rollout.obs.shape[2:]))
        values = self.values(rows).reshape(steps + 1, num_envs)
        obs, action = rows[:-num_envs], rollout.action
        log_prob, _ = self.head.forward(self.actor.forward(obs), action.reshape(-1, *action.shape[2:]))
        next_value = values[1:].copy()
        if rollout.final_obs is not None:
            next_value[rollout.final_index] = self.values(self.preprocess(rollout.final_obs))
        else:
            next_value[rollout.final_index] = values[rollout.final_index]
        obs = obs.reshape(steps, num_envs, -1)
        return Evaluation(obs, action, log_prob.reshape(steps, num_envs), values[:-1], next_value)

    def values(self, rows: Floats) -> Floats:
        return self.critic.forward(rows)[:, 0]

    def array(self, values: NDArray[Any]) -> NDArray[Any]:
        return values

    def forward(self, batch: Batch) -> Outputs:
        log_prob, entropy = self.head.forward(self.actor.forward(batch.obs), batch.action)
        return Outputs(log_prob, entropy, self.values(batch.obs))

    def backward(self, gradient: Outputs, terms: Sequence[Array]) -> None:
        self.carried[:] = terms
        self.actor.backward(self.head.backward(gradient.log_prob, gradient.entropy))
        self.critic.backward(gradient.value[:, None])


def _preprocess(module: Flatten) -> Callable[[NDArray[Any]], Floats]:
    """The module's function on rows [B, ...] of observations, with the statistics it has now."""
    if isinstance(module, OneHot):
        table, start = np.eye(module.output_size, dtype=np.float32), module.start
        return lambda obs: table[obs - start]
    size = module.output_size
    if not isinstance(module, Whiten):
        return lambda obs: obs.reshape(len(obs), size).astype(np.float32, copy=False)
    mean, limit = _array(module.moments.mean).copy(), np.float32(module.clip)
    scale = 1 / np.sqrt(_array(module.moments.variance) + np.float32(EPSILON))

    def whiten(obs: NDArray[Any]) -> Floats:
        rows: Floats = np.subtract(obs.reshape(len(obs), size), mean, dtype=np.float32)  # integers would make it float64
        rows *= scale
        np.minimum(rows, limit, out=rows)
        return np.maximum(rows, -limit, out=rows)

    return whiten
