"""Small MLP policies with an LSTM or a GRU on a CPU: the layers in numpy (see numpy_mlp.py), sequences by torch's fused kernel.

Acting is one step at a time, for which a call of torch takes several times as long as the arithmetic: single steps of the memory
are written out in numpy.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from proxrl.common.tree import tree_map
from proxrl.engine.api import Evaluation, Outputs
from proxrl.engine.numpy_mlp import Network, NumpyCompute, Rows
from proxrl.policy.encoders import MLP
from proxrl.policy.memory import PolicyMemory, RecurrentMemory
from proxrl.policy.policy import Policy
from proxrl.types import ActingOutputs, Batch, Rollout, State, Tree

# (input [N, F], states [N, H] before the step) -> states after it, of which the first is the output
Cell = Callable[[Rows, list[Rows]], tuple[Rows, ...]]


class NumpyRecurrentCompute(NumpyCompute):
    """`Compute` for the policies of `NumpyCompute` with an LSTM or a GRU. States are tensors, as with every policy."""

    memory: ClassVar[type[PolicyMemory]] = RecurrentMemory

    @classmethod
    def supports(cls, policy: Policy) -> bool:
        encoders: tuple[Any, ...] = policy.actor, policy.critic
        return super().supports(policy) and all(encoder.layers for encoder in encoders)

    def network(self, encoder: MLP, memory: Any, output: nn.Linear) -> Any:
        return RecurrentNetwork(encoder, memory, output)

    def freeze(self) -> None:
        super().freeze()
        self.actor.freeze()
        self.critic.freeze()

    def act(
        self,
        obs: Tree,
        state: State,
        starts: NDArray[np.bool_],
        noise: Rows | None,
        outputs: ActingOutputs | None = None,
    ) -> tuple[NDArray[Any], State]:
        observed, allowed = self.split(obs)
        rows, size = self.preprocess(observed), self.policy.memory.size
        inputs, actor_state = self.actor.step(rows, state[:size], starts)
        value, critic_state = self.critic.step(rows, state[size:], starts)
        if outputs is not None:
            outputs.append((inputs, value))
        return self.head.act(inputs, noise, allowed), actor_state + critic_state

    def evaluate(self, rollout: Rollout) -> Evaluation:
        steps, num_envs = rollout.reward.shape
        observed, allowed = self.split(tree_map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rollout.obs))
        rows = self.preprocess(observed)
        action = rollout.action.reshape(-1, *rollout.action.shape[2:])
        inputs, values = (np.concatenate(column) for column in zip(*rollout.outputs, strict=True))
        log_prob, _ = self.head.forward(inputs, action, allowed[:-num_envs])
        size = self.policy.memory.size
        last, _ = self.critic.step(rows[-num_envs:], tuple(part[-1] for part in rollout.states[size:]), rollout.starts[-1])
        value = np.concatenate([values, last]).reshape(steps + 1, num_envs, -1)
        next_value = value[1:].copy()
        if rollout.final_obs is not None:
            final = self.preprocess(self.split(rollout.final_obs)[0])
            next_value[rollout.final_index] = self.critic.step(final, rollout.final_state[size:], None)[0]
        else:
            next_value[rollout.final_index] = value[rollout.final_index]
        obs = rows[:-num_envs], allowed[:-num_envs]
        return Evaluation(obs, action, log_prob.reshape(steps, num_envs), value, next_value)

    def forward(self, batch: Batch) -> Outputs:
        (obs, allowed), size = batch.obs, self.policy.memory.size
        inputs = self.actor.forward(obs, batch.state[:size], batch.starts)
        for moves in batch.perturbation:
            inputs += moves
        log_prob, entropy = self.head.forward(inputs, batch.action, allowed)
        return Outputs(log_prob, entropy, self.critic.forward(obs, batch.state[size:], batch.starts))


class RecurrentNetwork:
    """An encoder, a memory, and a linear layer behind it."""

    def __init__(self, encoder: MLP, memory: RecurrentMemory, output: nn.Linear) -> None:
        self.encoder = Network(list(encoder.layers), encoder.activation)  # type: ignore[arg-type]
        self.memory = memory
        self.output = Network([output], encoder.activation)

    def freeze(self) -> None:
        """Read the weights of single steps, which do not change while acting."""
        rnn = self.memory.rnn
        self.cells = [(lstm_cell if isinstance(rnn, nn.LSTM) else gru_cell)(rnn, layer) for layer in range(rnn.num_layers)]

    def step(self, inputs: Rows, state: State, starts: NDArray[np.bool_] | None) -> tuple[Rows, State]:
        """Return the outputs of one step and the state after it."""
        features = self.encoder.activate_(self.encoder.forward(inputs))
        before = [tensor.numpy() for tensor in state]  # [N, layers, H]
        if starts is not None and starts.any():
            before = [np.where(starts[:, None, None], np.float32(0), part) for part in before]
        after = []
        for layer, cell in enumerate(self.cells):
            with np.errstate(over="ignore"):  # a gate whose exp overflows is closed, which is right
                after.append(cell(features, [part[:, layer] for part in before]))
            features = after[-1][0]
        return self.output.forward(features), tuple(torch.from_numpy(np.stack(parts, 1)) for parts in zip(*after, strict=True))

    def forward(self, inputs: Rows, state: State, starts: NDArray[np.bool_]) -> Rows:
        """Return the outputs of whole sequences."""
        features = self.encoder.activate_(self.encoder.forward(inputs))
        self.features = torch.from_numpy(features).requires_grad_()
        self.outputs, _ = self.memory(self.features, state, torch.from_numpy(starts))
        return self.output.forward(self.outputs.detach().numpy())

    def backward(self, gradient: Rows) -> None:
        self.output.backward(gradient)
        inner = np.zeros(self.features.shape, np.float32)
        if self.outputs.requires_grad:  # a rank's share of a minibatch may be empty
            slope = torch.from_numpy(np.dot(gradient, self.output.weights[0]))
            # The sum has the same gradient as `outputs.backward(slope)`, for which torch would import sympy for two seconds.
            (self.outputs * slope).sum().backward()
            assert self.features.grad is not None
            inner = self.features.grad.numpy() * self.encoder.slope(self.features.detach().numpy())
        self.encoder.backward(inner)


def lstm_cell(rnn: nn.RNNBase, layer: int) -> Cell:
    """Return the function of one step: i, f, o = sigmoid and g = tanh of W_ih @ input + b_ih + W_hh @ hidden + b_hh, then
    cell = f * cell + i * g and hidden = o * tanh(cell).
    """
    width = rnn.hidden_size
    # With these factors all four come from 1 / (1 + exp(x)), because tanh(x) = 2 * sigmoid(2 * x) - 1.
    scale = np.repeat(np.array([-1, -1, -2, -1], np.float32), width)
    input_weight, hidden_weight, input_bias, hidden_bias = _parameters(rnn, layer)
    weight = np.ascontiguousarray((np.concatenate([input_weight, hidden_weight], 1) * scale[:, None]).T)
    bias = (input_bias + hidden_bias) * scale

    def cell(inputs: Rows, states: list[Rows]) -> tuple[Rows, ...]:
        hidden, memory = states
        gates = np.dot(np.concatenate([inputs, hidden], 1), weight)
        gates += bias
        np.exp(gates, out=gates)
        gates += 1
        np.reciprocal(gates, out=gates)
        g = gates[:, 2 * width : 3 * width] * 2
        g -= 1
        memory = gates[:, width : 2 * width] * memory
        memory += np.multiply(g, gates[:, :width], out=g)
        return gates[:, 3 * width :] * np.tanh(memory), memory

    return cell


def gru_cell(rnn: nn.RNNBase, layer: int) -> Cell:
    """Return the function of one step: r, z = sigmoid(W_ih @ input + b_ih + W_hh @ hidden + b_hh), n = tanh of the same with
    W_hh @ hidden + b_hh times r, then hidden = (1 - z) * n + z * hidden.
    """
    width = rnn.hidden_size
    input_weight, hidden_weight, input_bias, hidden_bias = _parameters(rnn, layer)

    def cell(inputs: Rows, states: list[Rows]) -> tuple[Rows, ...]:
        (hidden,) = states
        from_input = np.dot(inputs, input_weight.T) + input_bias
        from_hidden = np.dot(hidden, hidden_weight.T) + hidden_bias
        gates = 1 / (1 + np.exp(-from_input[:, : 2 * width] - from_hidden[:, : 2 * width]))
        new = np.tanh(from_input[:, 2 * width :] + gates[:, :width] * from_hidden[:, 2 * width :])
        return (new + gates[:, width:] * (hidden - new),)

    return cell


def _parameters(rnn: nn.RNNBase, layer: int) -> list[Rows]:
    """Return the weights and biases of a layer: for inputs and for hidden states."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [getattr(rnn, f"{name}_l{layer}").detach().numpy() for name in names]
