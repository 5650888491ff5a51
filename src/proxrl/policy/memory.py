"""The memory of a policy, between its encoder and its heads: a feed-forward policy has one with an empty state, so all policies
are called in the same way.

A memory takes the features of C sequences of L steps, one sequence after another, [C * L, F]; the state before the first step of
each sequence, tensors [C, ...]; and `starts` [C * L], which marks observations that begin an episode. Acting is L = 1. It returns
features [C * L, output_size] and the states after the last steps; these may be missing, (), if episodes begin inside of
sequences: only acting needs them.
"""

import abc
import functools
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from proxrl.types import State


class PolicyMemory(nn.Module, abc.ABC):
    """`size` is the number of tensors in a state: policy and value may have a memory each, and their states form one tuple."""

    size: int
    output_size: int

    @abc.abstractmethod
    def initial_state(self, count: int) -> State:
        """Return the state before the first step of an episode, for `count` environments."""

    @abc.abstractmethod
    def forward(self, features: Tensor, state: State, starts: Tensor | None) -> tuple[Tensor, State]: ...


class NoMemory(PolicyMemory):
    """Returns features unchanged; the state is empty."""

    size = 0

    def __init__(self, inputs: int = 0) -> None:
        super().__init__()
        self.output_size = inputs

    def initial_state(self, count: int) -> State:
        return ()

    def forward(self, features: Tensor, state: State, starts: Tensor | None) -> tuple[Tensor, State]:
        return features, state


class RecurrentMemory(PolicyMemory):
    """LSTM or GRU layers, with orthogonal weights and zero biases (LSTM detail 1).

    The state is that of all layers, [C, layers, width]: hidden and, for an LSTM, cell. It is zero before an episode (LSTM details
    2 and 3).
    """

    def __init__(self, kind: str, inputs: int, width: int, layers: int) -> None:
        super().__init__()
        self.rnn = (nn.LSTM if kind == "lstm" else nn.GRU)(inputs, width, layers)
        for name, parameter in self.rnn.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
            else:
                nn.init.orthogonal_(parameter, 1.0)
        self.size = 2 if kind == "lstm" else 1
        self.output_size = width

    def initial_state(self, count: int) -> State:
        zeros = next(self.parameters()).new_zeros(count, self.rnn.num_layers, self.rnn.hidden_size)
        return (zeros,) * self.size

    def forward(self, features: Tensor, state: State, starts: Tensor | None) -> tuple[Tensor, State]:
        count = state[0].shape[0]
        if count == 0:  # a rank's share of a minibatch
            return features.new_zeros(0, self.output_size), state
        if starts is None:
            return self._whole(features, state)
        starts = starts.view(count, -1)
        state = tuple(tensor * ~starts[:, 0, None, None] for tensor in state)
        if starts.shape[1] == 1 or not starts[:, 1:].any():
            return self._whole(features, state)
        return self._segments(features, state, starts)

    def _whole(self, features: Tensor, state: State) -> tuple[Tensor, State]:
        """Run sequences in which no episode begins after the first step."""
        count = state[0].shape[0]
        sequences = features.view(count, -1, features.shape[-1]).transpose(0, 1)
        outputs, after = self._run(sequences, tuple(tensor.transpose(0, 1).contiguous() for tensor in state))
        return outputs.transpose(0, 1).reshape(len(features), -1), tuple(tensor.transpose(0, 1) for tensor in after)

    def _segments(self, features: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """Run sequences in which episodes begin, split there into segments. On a CPU only padded sequences, not packed ones, go
        through the fused kernel, so segments of similar lengths are padded and share a call.
        """
        groups = segment_groups(starts.cpu().numpy().tobytes(), starts.shape[1])
        outputs, rows = [], []
        for group in groups:
            index, slots, first, sequences = (torch.from_numpy(array).to(features.device) for array in group[:4])
            begins = (tensor.new_zeros(group.segments, *tensor.shape[1:]) for tensor in state)
            begins = (zeros.index_copy(0, first, tensor[sequences]) for zeros, tensor in zip(begins, state, strict=True))
            before = tuple(tensor.transpose(0, 1).contiguous() for tensor in begins)
            padded = features.new_zeros(group.steps * group.segments, features.shape[-1]).index_copy(0, slots, features[index])
            output, _ = self._run(padded.view(group.steps, group.segments, -1), before)
            outputs.append(output.flatten(0, 1)[slots])
            rows.append(index)
        return torch.cat(outputs)[torch.cat(rows).argsort()], ()

    def _run(self, sequences: Tensor, state: State) -> tuple[Tensor, State]:
        """Run sequences [L, C, F] from states [layers, C, width]; return outputs [L, C, width] and the states after them."""
        outputs, after = self.rnn(sequences, state if self.size == 2 else state[0])
        return outputs, after if self.size == 2 else (after,)


class SegmentGroup(NamedTuple):
    """Segments of sequences, padded to the length of the longest one: [steps, segments]."""

    rows: NDArray[np.int64]  # [R] the rows of the sequences [C * L] that belong to them
    slots: NDArray[np.int64]  # [R] the place of each row in the padded segments: step * segments + segment
    first: NDArray[np.int64]  # the segments that begin with a sequence, not with an episode
    sequences: NDArray[np.int64]  # these sequences
    steps: int
    segments: int


# Segments whose lengths differ by a larger factor are padded separately (docs/performance.md).
MOST_PADDING = 4


@functools.lru_cache(maxsize=8)  # policy and value may have a memory each
def segment_groups(starts: bytes, steps: int) -> list[SegmentGroup]:
    """Split sequences of `steps` steps only where episodes begin, as the booleans `starts` [C * L] say; return segments of
    similar lengths together, the longest first.
    """
    begins = np.frombuffer(starts, np.bool_).copy()
    begins[::steps] = True
    begin = np.flatnonzero(begins)
    lengths = np.diff(begin, append=len(begins))
    groups = []
    longest = lengths.max()
    while longest:
        segments = np.flatnonzero((lengths <= longest) & (lengths * MOST_PADDING > longest))
        rows = np.concatenate([np.arange(begin[k], begin[k] + lengths[k]) for k in segments])
        slots = np.concatenate([np.arange(lengths[k]) * len(segments) + number for number, k in enumerate(segments)])
        first = np.flatnonzero(begin[segments] % steps == 0)
        sequences = begin[segments][first] // steps
        groups.append(SegmentGroup(rows, slots, first, sequences, int(longest), len(segments)))
        longest = lengths[lengths * MOST_PADDING <= longest].max(initial=0)
    return groups
