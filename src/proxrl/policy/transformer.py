"""A transformer as memory: every step attends to the last steps of its episode.

This is the gated Transformer-XL (GTrXL) of "Stabilizing Transformers for Reinforcement Learning" (Parisotto et al., 2020): layers
with normalized inputs, relative positions, and gates instead of sums, which at first let little of a layer through. So the
initial policy is close to a feed-forward one, and learns from memory as far as that pays off.

C = sequences, L = steps of a sequence, W = steps of the window. Keys are numbered 0 to W - 1 in the state, from the oldest to the
newest, and W to W + L - 1 in the sequence.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, pad

from proxrl.policy.encoders import orthogonal
from proxrl.policy.memory import PolicyMemory
from proxrl.types import State

# The gates' initial bias towards their input: a layer's share in its output is at first about sigmoid(-2) = 12%.
GATE_BIAS = 2.0
# Longer sequences are computed in blocks of this many steps, or of W if that is more: scores of all pairs of steps in a sequence
# would take memory that grows with the square of its length.
BLOCK = 128


class TransformerMemory(PolicyMemory):
    """Layers of gated attention with a window of W steps: a step attends to itself and to the W steps before it, as far as they
    are of its own episode. `width` must be a multiple of `heads`.

    The state holds the normalized inputs of every layer in the last W steps, [C, layers, W, width], and how many of these steps
    are of the current episode, [C, 1]. Gradients flow between the steps of a sequence; the state before it is data.
    """

    size = 2

    def __init__(self, inputs: int, width: int, layers: int, heads: int, window: int) -> None:
        super().__init__()
        self.window, self.output_size = window, width
        self.project = orthogonal(nn.Linear(inputs, width), gain=1.0)
        self.layers = nn.ModuleList(GatedLayer(width, heads) for _ in range(layers))
        self.distances: Tensor
        self.register_buffer("distances", distance_encoding(window, width), persistent=False)

    def initial_state(self, count: int) -> State:
        zeros = self.project.weight.new_zeros
        return zeros(count, len(self.layers), self.window, self.output_size), zeros(count, 1)

    def forward(self, features: Tensor, state: State, starts: Tensor | None) -> tuple[Tensor, State]:
        # Also in lower precision, the state is float32.
        rows = self.project(features).float()
        if starts is None:  # one step of each sequence
            outputs, state = self._block(rows.unsqueeze(1), state, None)
            return outputs.squeeze(1), state
        count = state[0].shape[0]
        if count == 0:  # a rank's share of a minibatch
            return rows, state
        rows, starts = rows.view(count, -1, self.output_size), starts.view(count, -1)
        size, blocks = max(BLOCK, self.window), []
        for begin in range(0, rows.shape[1], size):
            steps = slice(begin, begin + size)
            outputs, state = self._block(rows[:, steps], state, starts[:, steps])
            blocks.append(outputs)
        return torch.cat(blocks, 1).flatten(0, 1), state

    def _block(self, stream: Tensor, state: State, starts: Tensor | None) -> tuple[Tensor, State]:
        """Run all layers on rows [C, L, width]; `starts` [C, L], or None if no episode begins."""
        (memory, count), length = state, stream.shape[1]
        first = self._first_keys(count, starts)
        visible = self._visible(first, length)
        inputs = []
        for number, layer in enumerate(self.layers):
            inputs.append(layer_norm(stream, (self.output_size,)))
            stream = layer(stream, inputs[-1], memory[:, number], visible, self.distances)
        newest = torch.stack(inputs, 1)[:, :, -self.window :]
        known = (self.window + length - first[:, -1:]).clamp(max=self.window)
        return stream, (torch.cat([memory[:, :, length:], newest], 2), known)

    def _first_keys(self, count: Tensor, starts: Tensor | None) -> Tensor:
        """Return the key with which the episode of each step begins, [C, L], or [C, 1] if it is the same for all."""
        before = self.window - count
        if starts is None:
            return before
        steps = torch.arange(self.window, self.window + starts.shape[1], dtype=before.dtype, device=before.device)
        return torch.where(starts, steps, before).cummax(1).values

    def _visible(self, first: Tensor, length: int) -> Tensor:
        """Return which keys the steps attend to, [C, 1, L, W + L]: of their own episode, within the window, and not later."""
        keys = torch.arange(self.window + length, device=first.device)
        oldest = torch.arange(length, device=first.device)[:, None]
        within = (keys >= oldest) & (keys <= oldest + self.window)
        return ((keys >= first[..., None]) & within).unsqueeze(1)


class GatedLayer(nn.Module):
    """Attention, then two linear layers for each step by itself, each joined to the stream by a gate."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width = width
        self.attention = RelativeAttention(width, heads)
        self.attention_gate = Gate(width)
        self.expand = orthogonal(nn.Linear(width, 2 * width), math.sqrt(2))
        self.contract = orthogonal(nn.Linear(2 * width, width), math.sqrt(2))
        self.step_gate = Gate(width)

    def forward(self, stream: Tensor, inputs: Tensor, memory: Tensor, visible: Tensor, distances: Tensor) -> Tensor:
        stream = self.attention_gate(stream, self.attention(inputs, memory, visible, distances).relu())
        hidden = self.expand(layer_norm(stream, (self.width,))).relu()
        output: Tensor = self.step_gate(stream, self.contract(hidden).relu())
        return output


class Gate(nn.Module):
    """Joins a stream and the output of a branch like a GRU joins its state and its input, biased towards the stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_branch = orthogonal(nn.Linear(width, 3 * width), gain=1.0)
        self.of_stream = orthogonal(nn.Linear(width, 2 * width, bias=False), gain=1.0)
        self.of_reset = orthogonal(nn.Linear(width, width, bias=False), gain=1.0)
        nn.init.constant_(self.of_branch.bias[width : 2 * width], -GATE_BIAS)

    def forward(self, stream: Tensor, branch: Tensor) -> Tensor:
        reset, update, candidate = self.of_branch(branch).chunk(3, -1)
        stream_reset, stream_update = self.of_stream(stream).chunk(2, -1)
        reset = (reset + stream_reset).sigmoid()
        candidate = (candidate + self.of_reset(reset * stream)).tanh()
        joined: Tensor = stream + (update + stream_update).sigmoid() * (candidate - stream)
        return joined


class RelativeAttention(nn.Module):
    """Attention whose scores depend on what two steps contain and on how far apart they are, as in Transformer-XL.

    Keys and values are linear functions of their steps, so instead of computing them for all steps of the window, the queries are
    mapped to the space of the steps, and the mean of the steps is mapped to values. When acting there is one query per head, but
    W + 1 keys.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_size = heads, width // heads
        self.query, self.key, self.value, self.distance, self.join = (
            orthogonal(nn.Linear(width, width, bias=False), gain=1.0) for _ in range(5)
        )
        # Added to queries: what attracts attention to contents and to distances, whatever the query is.
        self.content_bias = nn.Parameter(torch.zeros(heads, 1, self.head_size))
        self.distance_bias = nn.Parameter(torch.zeros(heads, 1, self.head_size))

    def forward(self, inputs: Tensor, memory: Tensor, visible: Tensor, distances: Tensor) -> Tensor:
        """Attend from `inputs` [C, L, width] to `memory` [C, W, width] and `inputs`, where `visible`."""
        (count, length, width), window = inputs.shape, memory.shape[1]
        query = self._by_head(self.query(inputs).view(count, length, self.heads, self.head_size))  # [heads, C * L, head_size]
        weight = self.heads, self.head_size, width
        content = self._by_sequence((query + self.content_bias) @ self.key.weight.view(weight), count).flatten(1, 2)
        scores = torch.cat([content @ memory.transpose(1, 2), content @ inputs.transpose(1, 2)], -1)  # [C, heads * L, W + L]
        encoded = self.distance(distances).view(-1, self.heads, self.head_size).permute(1, 2, 0)  # [heads, head_size, W + 1]
        position = by_key(self._by_sequence((query + self.distance_bias) @ encoded, count))  # [C, heads, L, W + L]
        scores = (scores.view(position.shape) + position) / math.sqrt(self.head_size)
        attention = scores.masked_fill(~visible, -math.inf).softmax(-1).flatten(1, 2)
        mean = attention[..., :window] @ memory + attention[..., window:] @ inputs  # [C, heads * L, width]
        means = self._by_head(mean.view(count, self.heads, length, width).transpose(1, 2))
        values = self._by_sequence(means @ self.value.weight.view(weight).transpose(1, 2), count)  # [C, heads, L, head_size]
        output: Tensor = self.join(values.transpose(1, 2).reshape(count, length, width))
        return output

    def _by_head(self, tensor: Tensor) -> Tensor:
        """Return [C, L, heads, n] as [heads, C * L, n], to be multiplied by the weights of each head without copies of them."""
        return tensor.permute(2, 0, 1, 3).flatten(1, 2)

    def _by_sequence(self, tensor: Tensor, count: int) -> Tensor:
        """Return [heads, C * L, n] as [C, heads, L, n]."""
        return tensor.view(self.heads, count, -1, tensor.shape[-1]).transpose(0, 1)


def by_key(scores: Tensor) -> Tensor:
    """Return scores [..., L, W + 1] by distance, from W to 0, as scores by key [..., L, W + L], with zeros outside the window.

    The keys of step l in its window are l to l + W. Rows that are one longer than those of the result move by one key per step.
    """
    length, distances = scores.shape[-2:]
    keys = distances + length - 1
    return pad(scores, (0, length)).flatten(-2)[..., : length * keys].view(*scores.shape[:-1], keys)


def distance_encoding(window: int, width: int) -> Tensor:
    """Return sines and cosines of the distances from W to 0, [W + 1, width], with wavelengths from 2 pi to 10,000 times that."""
    distances = torch.arange(window, -1, -1.0)[:, None]
    angles = distances * 10_000 ** -(torch.arange(0, width, 2) / width)
    return torch.cat([angles.sin(), angles.cos()], 1)[:, :width]
