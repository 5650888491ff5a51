"""Small MLP policies on a CPU, forward and backward written out in numpy.

For networks of a few thousand weights, autograd takes four times as long to record and replay the arithmetic as the arithmetic
itself takes. The arrays here are views of the torch policy's own parameters, gradients and statistics: nothing is copied, and
everything else (checkpoints, averaging over ranks, clipping, Adam) works as with autograd.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from proxrl.common.tree import tree_map
from proxrl.engine.api import Evaluation, Outputs
from proxrl.engine.flat import FlatParameters
from proxrl.engine.shards import Shards
from proxrl.policy.continuous_heads import GaussianHead
from proxrl.policy.distributions import FORBIDDEN
from proxrl.policy.encoders import MLP
from proxrl.policy.heads import CategoricalHead
from proxrl.policy.memory import NoMemory, PolicyMemory
from proxrl.policy.policy import Policy
from proxrl.policy.preprocess import Branches, Floats, Mask, OneHot, Preprocess, Whiten
from proxrl.policy.statistics import EPSILON
from proxrl.types import ActingOutputs, Array, Batch, Rollout, State, Tree

Rows = NDArray[np.float32]
Allowed: TypeAlias = Any  # a mask [B, n]; empty if there is none

# From this size on, `_tanh_` is faster in five vectorized passes than as one call of tanh.
MANY = 2048


def _array(tensor: Tensor | None) -> Rows:
    assert tensor is not None
    return tensor.detach().numpy()


def _tanh_(x: Rows) -> Rows:
    """Compute tanh in place; for large arrays as 2 / (1 + exp(-2x)) - 1, because numpy vectorizes exp but, on many CPUs, not
    tanh.
    """
    if x.size < MANY:
        return np.tanh(x, out=x)
    x *= -2
    with np.errstate(over="ignore"):  # if exp overflows, the result is -1, which is right
        np.exp(x, out=x)
    x += 1
    np.divide(2, x, out=x)
    x -= 1
    return x


def _relu_(x: Rows) -> Rows:
    return np.maximum(x, 0, out=x)


class Network:
    """A stack of linear layers with an activation between them."""

    def __init__(self, layers: Sequence[nn.Linear], activation: str) -> None:
        self.weights = [_array(layer.weight) for layer in layers]
        self.biases = [_array(layer.bias) for layer in layers]
        self.weight_gradients = [_array(layer.weight.grad) for layer in layers]
        self.bias_gradients = [_array(layer.bias.grad) for layer in layers]
        self.tanh = activation == "tanh"
        self.activate_: Callable[[Rows], Rows] = _tanh_ if self.tanh else _relu_
        self.inputs: list[Rows] = []

    def forward(self, inputs: Rows) -> Rows:
        """Store the input of every layer for `backward`."""
        self.inputs = []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            if self.inputs:
                inputs = self.activate_(inputs)
            self.inputs.append(inputs)
            inputs = np.dot(inputs, weight.T)
            inputs += bias
        return inputs

    def backward(self, gradient: Rows) -> None:
        """Compute the gradients of all weights and biases from the gradient at the output."""
        for layer in reversed(range(len(self.weights))):
            inputs = self.inputs[layer]
            np.dot(gradient.T, inputs, out=self.weight_gradients[layer])
            np.add.reduce(gradient, axis=0, out=self.bias_gradients[layer])
            if layer:
                gradient = np.dot(gradient, self.weights[layer])
                gradient *= self.slope(inputs)

    def slope(self, activated: Rows) -> NDArray[Any]:
        """Return the slope of the activation, from its result."""
        return 1 - activated * activated if self.tanh else activated > 0


class _Categorical:
    def freeze(self) -> None:
        """There is nothing to read: the logits alone decide."""

    def act(self, logits: Rows, noise: Rows | None, allowed: Allowed) -> NDArray[np.int64]:
        logits = _masked(logits, allowed)
        chosen: NDArray[np.int64] = (logits if noise is None else logits + noise).argmax(1)
        return chosen

    def forward(self, logits: Rows, action: NDArray[np.int64], allowed: Allowed) -> tuple[Rows, Rows]:
        logits = _masked(logits, allowed)
        shifted = logits - logits.max(1, keepdims=True)
        exponential = np.exp(shifted)
        total = exponential.sum(1, keepdims=True)
        self.log_probs = shifted - np.log(total)
        self.probs = exponential / total
        self.entropy = -np.einsum("ij,ij->i", self.probs, self.log_probs)
        self.chosen = np.arange(len(action)), action
        return self.log_probs[self.chosen], self.entropy

    def backward(self, log_prob: Rows, entropy: Rows) -> Rows:
        # With respect to logit j, log p(action) has the slope [j = action] - p_j, and the entropy H has -p_j * (log p_j + H).
        gradient: Rows = self.log_probs + self.entropy[:, None]
        gradient *= entropy[:, None]
        gradient += log_prob[:, None]
        gradient *= -self.probs
        gradient[self.chosen] += log_prob
        return gradient


def _masked(logits: Rows, allowed: Allowed) -> Rows:
    return np.where(allowed, logits, np.float32(FORBIDDEN)) if len(allowed) else logits


class _Gaussian:
    def __init__(self, head: GaussianHead) -> None:
        self.log_std, self.log_std_gradient = _array(head.log_std), _array(head.log_std.grad)

    def freeze(self) -> None:
        self.std = np.exp(self.log_std)

    def act(self, mean: Rows, noise: Rows | None, allowed: Allowed) -> Rows:
        return mean if noise is None else noise * self.std + mean

    def forward(self, mean: Rows, action: Rows, allowed: Allowed) -> tuple[Rows, Rows]:
        self.inverse_std = np.exp(-self.log_std)
        self.scaled = (action - mean) * self.inverse_std
        normalizer = self.log_std.sum() + np.float32(0.5 * math.log(2 * math.pi) * len(self.log_std))
        log_prob = np.einsum("ij,ij->i", self.scaled, self.scaled) * np.float32(-0.5) - normalizer
        return log_prob, np.full(len(mean), normalizer + np.float32(0.5 * len(self.log_std)))

    def backward(self, log_prob: Rows, entropy: Rows) -> Rows:
        # With z = (action - mean) / std, log p has the slopes z^2 - 1 with respect to log_std and z / std with respect to the
        # mean; the entropy has 1 and 0.
        np.dot(log_prob, self.scaled * self.scaled - 1, out=self.log_std_gradient)
        self.log_std_gradient += entropy.sum()
        return self.scaled * self.inverse_std * log_prob[:, None]


class NumpyCompute:
    """`Compute` for separate MLPs and a categorical or Gaussian head; `backward` is called once per step of the optimizer."""

    library: ClassVar[Any] = np
    memory: ClassVar[type[PolicyMemory]] = NoMemory
    features: Tensor | None = None
    shards = Shards()

    @classmethod
    def supports(cls, policy: Policy) -> bool:
        """Return whether the policy consists of parts that are written out here. Types must match exactly: a subclass may compute
        something else.
        """
        networks = policy.actor, policy.critic
        mlps = all(type(network) is MLP and network.activation in ("tanh", "relu") for network in networks)
        linear = type(policy.action) is nn.Linear and type(policy.value) is nn.Linear
        memories = type(policy.memory) is type(policy.critic_memory) is cls.memory
        head = policy.head
        known = type(head) is CategoricalHead or (type(head) is GaussianHead and head.std == "independent")
        return mlps and linear and memories and known and all(type(part) in _SUPPORTED for part in _leaves(policy.preprocess))

    def __init__(self, policy: Policy, parameters: FlatParameters) -> None:
        self.policy = policy
        self.terms = parameters.terms.numpy()
        networks: Any = policy  # `supports` has checked their types
        self.actor = self.network(networks.actor, networks.memory, networks.action)
        self.critic = self.network(networks.critic, networks.critic_memory, networks.value)
        head = policy.head
        self.head = _Gaussian(head) if isinstance(head, GaussianHead) else _Categorical()
        self.freeze()

    def network(self, encoder: MLP, memory: Any, output: nn.Linear) -> Any:
        return Network([*encoder.layers, output], encoder.activation)

    def freeze(self) -> None:
        self.head.freeze()
        parts = self.policy.preprocess
        if self.policy.masked:
            assert isinstance(parts, Branches)
            parts = parts.parts[parts.keys.index("observation")]
        self.preprocess = _preprocess(parts)

    def initial_state(self, num_envs: int) -> State:
        return self.policy.initial_state(num_envs)

    def act(
        self,
        obs: Tree,
        state: State,
        starts: NDArray[np.bool_],
        noise: Rows | None,
        outputs: ActingOutputs | None = None,
    ) -> tuple[NDArray[Any], State]:
        observed, allowed = self.split(obs)
        return self.head.act(self.actor.forward(self.preprocess(observed)), noise, allowed), state

    def split(self, obs: Tree) -> tuple[Tree, Allowed]:
        return (obs["observation"], obs["action_mask"].view(np.bool_)) if self.policy.masked else (obs, ())

    def evaluate(self, rollout: Rollout) -> Evaluation:
        steps, num_envs = rollout.reward.shape
        observed, allowed = self.split(tree_map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rollout.obs))
        rows = self.preprocess(observed)
        value = self.critic.forward(rows).reshape(steps + 1, num_envs, -1)
        obs, allowed = rows[:-num_envs], allowed[:-num_envs]
        action = rollout.action.reshape(-1, *rollout.action.shape[2:])
        log_prob, _ = self.head.forward(self.actor.forward(obs), action, allowed)
        next_value = value[1:].copy()
        if rollout.final_obs is not None:
            next_value[rollout.final_index] = self.critic.forward(self.preprocess(self.split(rollout.final_obs)[0]))
        else:
            next_value[rollout.final_index] = value[rollout.final_index]
        return Evaluation((obs, allowed), action, log_prob.reshape(steps, num_envs), value, next_value)

    def array(self, values: NDArray[Any]) -> NDArray[Any]:
        return values

    def forward(self, batch: Batch) -> Outputs:
        obs, allowed = batch.obs
        inputs = self.actor.forward(obs)
        for moves in batch.perturbation:
            inputs += moves
        log_prob, entropy = self.head.forward(inputs, batch.action, allowed)
        return Outputs(log_prob, entropy, self.critic.forward(obs))

    def backward(self, gradient: Outputs, terms: Sequence[Array], losses: Sequence[Tensor]) -> None:
        """Write the gradient instead of adding to it, which saves a pass over all weights: with this class, build.py refuses to
        split minibatches.
        """
        values = [*terms, *(loss.item() for loss in losses)]
        self.terms[: len(values)] = values
        self.actor.backward(self.head.backward(gradient.log_prob, gradient.entropy))
        self.critic.backward(gradient.value)
        learning = [loss for loss in losses if loss.requires_grad]
        if learning:
            torch.autograd.backward(learning)


_SUPPORTED = (Floats, Whiten, OneHot, Mask)


def _leaves(module: Preprocess) -> Iterator[Preprocess]:
    if isinstance(module, Branches):
        for part in module.parts:
            yield from _leaves(part)
    else:
        yield module


def _preprocess(module: Preprocess) -> Callable[[Tree], Rows]:
    """Return the module's function on rows [B, ...] of observations, with its current statistics; it concatenates all entries."""
    if isinstance(module, Branches):
        parts = [(key, _preprocess(part)) for key, part in zip(module.keys, module.parts, strict=True)]
        return lambda obs: np.concatenate([preprocess(obs[key]) for key, preprocess in parts], axis=1)
    if isinstance(module, OneHot):
        return _one_hot(module)
    if not isinstance(module, Whiten):
        return lambda obs: obs.reshape(len(obs), -1).astype(np.float32, copy=False)
    mean, limit = _array(module.moments.mean).reshape(-1).copy(), np.float32(module.clip)
    scale = 1 / np.sqrt(_array(module.moments.variance).reshape(-1) + np.float32(EPSILON))

    def whiten(obs: NDArray[Any]) -> Rows:
        rows: Rows = np.subtract(obs.reshape(len(obs), -1), mean, dtype=np.float32)  # integers would make it float64
        rows *= scale
        np.minimum(rows, limit, out=rows)
        return np.maximum(rows, -limit, out=rows)

    return whiten


def _one_hot(module: OneHot) -> Callable[[NDArray[Any]], Rows]:
    shift = module.begin.numpy() - module.start.numpy()
    if len(shift) == 1:
        table = np.eye(module.width, dtype=np.float32)
        # A MultiDiscrete with a single entry has rows [B, 1], of a type that may be too small for the shift.
        return lambda obs: table[obs.reshape(-1).astype(np.int64, copy=False) + shift]

    def one_hot(obs: NDArray[Any]) -> Rows:
        rows = np.zeros((len(obs), module.width), np.float32)
        columns = obs.reshape(len(obs), -1).astype(np.int64, copy=False) + shift
        np.put_along_axis(rows, columns, np.float32(1), axis=1)
        return rows

    return one_hot
