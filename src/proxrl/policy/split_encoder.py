"""`--encoder split`: parts of an observation have encoders of their own, and everything else goes straight to the trunk.

A robot observes its body (proprioception, a few exact numbers) and its surroundings (exteroception: lidar, height maps, cameras).
An encoder of the surroundings reduces them to features before a trunk, an MLP, combines both:

    exteroceptive → encoder ─┐
    everything else ─────────┴─▶ trunk → memory → heads

Each of --encoder-kwargs is such an encoder, by a name of the user's choice, and says what it encodes: ranges of a flat
observation, or keys of a Dict. Images always have convolutions of their own.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from torch import Tensor, nn

from proxrl.common.tree import tree_leaves
from proxrl.config import Config
from proxrl.envs.spaces import is_image, space_tree
from proxrl.envs.stacking import stack_size
from proxrl.errors import ProxRLError
from proxrl.policy.encoders import MLP, concatenated
from proxrl.policy.image_encoders import IMAGE_ENCODERS, Channels, default_encoder
from proxrl.types import Tree

SPLIT_NAME = "split"
FLAG = "--encoder-kwargs"
# Arguments that do not name an encoder: layers of all encoders, or of the encoder NAME, and the encoder of images.
SIZES, IMAGES = "sizes", "images"
NAME_SIZES = f"_{SIZES}"
WIDEST = 10**6
EXAMPLE = "exteroceptive=14:24 (numbers of a flat observation) or exteroceptive=lidar,map (keys of a Dict)"


class SplitArguments(NamedTuple):
    """What --encoder-kwargs say."""

    parts: dict[str, list[str]]  # what each encoder encodes, by its name
    sizes: dict[str, tuple[int, ...]]  # the layers of each encoder
    images: str | None  # the encoder of images; None: by their size


class Leaf(NamedTuple):
    """A part of an observation that is not split further."""

    space: spaces.Box
    columns: slice | None  # of a flat observation; None for an entry of a Dict or Tuple
    encoder: str | None  # name of the encoder; None: straight to the trunk


class SplitEncoder(nn.Module):
    """Encoders of some leaves of an observation, and an MLP that reads their features and all other leaves."""

    def __init__(
        self,
        leaves: Sequence[Leaf],
        arguments: SplitArguments,
        hidden_sizes: Sequence[int],
        activation: str,
        channels: Channels = "auto",
    ) -> None:
        super().__init__()
        self.columns = [leaf.columns for leaf in leaves]
        numbers = [index for index, leaf in enumerate(leaves) if not is_image(leaf.space)]
        self.image_leaves = [index for index, leaf in enumerate(leaves) if is_image(leaf.space)]
        names = [name for name in sorted(arguments.parts) if any(leaves[index].encoder == name for index in numbers)]
        self.encoder_leaves = [[index for index in numbers if leaves[index].encoder == name] for name in names]
        self.direct_leaves = [index for index in numbers if leaves[index].encoder is None]
        self.image_encoders = nn.ModuleList(
            IMAGE_ENCODERS[arguments.images or default_encoder(leaves[index].space, channels)](leaves[index].space, channels)
            for index in self.image_leaves
        )
        self.encoders = nn.ModuleList(
            MLP(spaces.Tuple([leaves[index].space for index in indices]), arguments.sizes[name], activation)
            for name, indices in zip(names, self.encoder_leaves, strict=True)
        )
        direct = sum(spaces.flatdim(leaves[index].space) for index in self.direct_leaves)
        encoded: Any = sum(encoder.output_size for encoder in (*self.image_encoders, *self.encoders))
        self.trunk = MLP(_numbers(direct + encoded), hidden_sizes, activation)
        self.output_size = self.trunk.output_size

    def forward(self, obs: Tree) -> Tensor:
        leaves = self._leaves(obs)
        images = [encoder(leaves[index]) for index, encoder in zip(self.image_leaves, self.image_encoders, strict=True)]
        encoded = [
            encoder(tuple(leaves[index] for index in indices))
            for indices, encoder in zip(self.encoder_leaves, self.encoders, strict=True)
        ]
        features: Tensor = self.trunk((*images, *encoded, *(leaves[index] for index in self.direct_leaves)))
        return features

    def _leaves(self, obs: Tree) -> list[Tensor]:
        if self.columns[0] is None:
            return list(tree_leaves(obs))
        rows = concatenated(obs)
        return [rows[:, columns] for columns in self.columns]


def make_split_encoder(config: Config, space: gymnasium.Space, whole: gymnasium.Space, channels: Channels) -> SplitEncoder:
    """Build the encoder of `space`, which has all or some of the keys of the preprocessed observation `whole`."""
    arguments = parse_arguments(config.encoder_kwargs, config.hidden_sizes)
    if is_image(whole):
        raise ProxRLError(f"--encoder {SPLIT_NAME} splits numbers or keys, but the observation is a single image; leave it out")
    if isinstance(whole, spaces.Box):
        leaves = flat_leaves(whole, arguments, stack_size(config.env, config.frame_stack))
    else:
        leaves = named_leaves(space, arguments, whole)
    return SplitEncoder(leaves, arguments, config.hidden_sizes, config.activation, channels)


def parse_arguments(kwargs: Mapping[str, Any], hidden_sizes: Sequence[int]) -> SplitArguments:
    """Return the arguments of the encoder, or raise an error that says what is wrong with them."""
    images = kwargs.get(IMAGES)
    if images is not None and (not isinstance(images, str) or images not in IMAGE_ENCODERS):
        raise ProxRLError(f"{FLAG} {IMAGES}={images}: there is no such encoder of images; use {', '.join(IMAGE_ENCODERS)}")
    reserved = {key for key in kwargs if key in (SIZES, IMAGES) or key.endswith(NAME_SIZES)}
    parts = {key: _words(key, value) for key, value in kwargs.items() if key not in reserved}
    if not parts:
        raise ProxRLError(f"--encoder {SPLIT_NAME} must know what gets an encoder of its own: {FLAG} {EXAMPLE}")
    for key in reserved - {SIZES, IMAGES}:
        if key.removesuffix(NAME_SIZES) not in parts:
            names = ", ".join(parts)
            raise ProxRLError(f"{FLAG} {key}: there is no encoder {key.removesuffix(NAME_SIZES)!r}; there is {names}")
    usual = _sizes(SIZES, kwargs[SIZES]) if SIZES in kwargs else tuple(hidden_sizes)
    sizes = {name: _sizes(key, kwargs[key]) if (key := name + NAME_SIZES) in kwargs else usual for name in parts}
    return SplitArguments(parts, sizes, images)


def _words(key: str, value: Any) -> list[str]:
    """Return the items of an argument: a list, or text with commas."""
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    if not items or not all(isinstance(item, str | int) and not isinstance(item, bool) and str(item).strip() for item in items):
        raise ProxRLError(f"{FLAG} {key}={value}: an encoder takes ranges or keys; use {EXAMPLE}")
    return [str(item).strip() for item in items]


def _sizes(key: str, value: Any) -> tuple[int, ...]:
    words = _words(key, value)
    if not all(word.isdecimal() and 1 <= int(word) <= WIDEST for word in words):
        raise ProxRLError(f"{FLAG} {key}={value}: the widths of layers are whole numbers from 1 to {WIDEST:,}, such as 64,32")
    return tuple(map(int, words))


def flat_leaves(space: spaces.Box, arguments: SplitArguments, stack: int) -> list[Leaf]:
    """Cut a flat observation into its ranges. Those of a stack of observations count in each of them."""
    size = math.prod(space.shape) // stack
    owner = np.full(size, "", dtype=object)
    for name, words in arguments.parts.items():
        for word in words:
            columns = _range(name, word, size)
            taken = [other for other in owner[columns] if other]
            if taken:
                raise ProxRLError(
                    f"{FLAG} {name}={word} overlaps with a range of {taken[0]}; each number has one encoder at most"
                )
            owner[columns] = name
    _check_something_is_left(arguments, [name or None for name in owner])
    edges = [0, *(index for index in range(1, size) if owner[index] != owner[index - 1]), size]
    return [
        Leaf(_numbers(end - begin), slice(frame * size + begin, frame * size + end), owner[begin] or None)
        for frame in range(stack)
        for begin, end in pairwise(edges)
    ]


def _range(name: str, word: str, size: int) -> slice:
    """Return the columns that a word such as 4:24, 4:, :24 or 4 stands for."""
    match = re.fullmatch(r"(\d*)(:?)(\d*)", word)
    if match is None or word == ":":
        raise ProxRLError(
            f"{FLAG} {name}={word}: the observation is flat, so this must be a range of its {size} numbers, such as 4:{size}"
        )
    begin = int(match[1] or 0)
    end = int(match[3] or size) if match[2] else begin + 1
    if end > size or begin >= size:
        raise ProxRLError(f"{FLAG} {name}={word} reaches beyond the observation, which has {size} numbers, 0:{size}")
    if begin >= end:
        raise ProxRLError(f"{FLAG} {name}={word} is empty; a range is begin:end, and end is not part of it")
    return slice(begin, end)


def named_leaves(space: gymnasium.Space, arguments: SplitArguments, whole: gymnasium.Space) -> list[Leaf]:
    """Return the entries of a Dict or Tuple that is all of `whole`, or some of its keys."""
    known = dict(_paths(space_tree(whole)))
    owner: dict[str, str] = {}
    for name, words in arguments.parts.items():
        for word in words:
            found = [path for path in known if path == word or path.startswith(f"{word}/")]
            if not found:
                raise ProxRLError(f"{FLAG} {name}={word}: the observation has the keys {', '.join(known)}")
            taken = [path for path in found if path in owner]
            if taken:
                raise ProxRLError(
                    f"{FLAG} {name}={word} overlaps with {owner[taken[0]]}, which has {taken[0]} already;"
                    " each key has one encoder at most"
                )
            owner |= dict.fromkeys(found, name)
    _check_something_is_left(arguments, [owner.get(path) for path in known])
    return [Leaf(leaf, None, owner.get(path)) for path, leaf in _paths(space_tree(space))]


def _paths(tree: Tree, path: str = "") -> Iterator[tuple[str, spaces.Box]]:
    """Yield the leaves in the order of `tree_leaves`, with their keys joined by slashes; entries of Tuples are numbered."""
    if not isinstance(tree, dict | tuple):
        yield path, tree
        return
    for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from _paths(part, f"{path}/{key}" if path else str(key))


def _check_something_is_left(arguments: SplitArguments, owners: Sequence[str | None]) -> None:
    if len(arguments.parts) == 1 and None not in owners:
        (name,) = arguments.parts
        raise ProxRLError(
            f"{FLAG} {name}={','.join(arguments.parts[name])} is the whole observation, so nothing is split; leave some of it"
            f" out, name several encoders, or leave out --encoder {SPLIT_NAME}"
        )


def _numbers(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)
