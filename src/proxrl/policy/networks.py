"""`make_policy` builds the networks of a policy: built-in ones, or plugins, which replace an encoder or a whole network.

A plugin is named by `module:callable`, so that config.toml can contain its name:

--encoder  build(observation_space, **kwargs)                from observations to features [B, n], any n
--policy   build(observation_space, action_space, **kwargs)  from observations to the head's inputs [B, action_inputs]
--value    build(observation_space, **kwargs)                from observations to values [B] or [B, 1]

`observation_space` describes preprocessed observations, with which the modules are called: Boxes of floats in the shapes of the
observation, bytes if it is an image, one-hot vectors for discrete entries, in the same Dicts and Tuples.
"""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from proxrl.common.seeding import Purpose, integer_seed
from proxrl.common.tree import tree_leaves, tree_map
from proxrl.config import Config, flag
from proxrl.config.plugins import build_plugin
from proxrl.envs.masks import Guard
from proxrl.envs.spaces import is_image, space_tree
from proxrl.envs.stacking import stack_size
from proxrl.errors import ProxRLError, one_line
from proxrl.policy.encoders import MLP, Select, orthogonal, select_space
from proxrl.policy.gsde import explore
from proxrl.policy.image_encoders import IMAGE_ENCODERS, Channels, ImageEncoder, Mixed, default_encoder, has_image
from proxrl.policy.make_head import make_head
from proxrl.policy.memory import NoMemory, PolicyMemory, RecurrentMemory
from proxrl.policy.policy import Policy, Trunk
from proxrl.policy.preprocess import make_preprocess
from proxrl.policy.split_encoder import SPLIT_NAME, SplitEncoder, make_split_encoder
from proxrl.policy.transformer import TransformerMemory

# Small enough that the initial policy is nearly uniform for all features (core detail 2).
ACTION_GAIN = 0.01
MLP_NAME = "mlp"


def make_policy(config: Config, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> Policy:
    """Build a policy, by default with separate MLPs for policy and value (core detail 13).

    The initial weights depend on the seed alone, so they are the same on every rank.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer_seed(config.seed, Purpose.WEIGHTS))
        preprocess = make_preprocess(observation_space, config.normalize_observations, config.clip_observations)
        guard = Guard(observation_space, action_space)
        inputs = preprocess.output_space["observation"] if guard.masked else preprocess.output_space  # type: ignore[index]
        if spaces.flatdim(inputs) == 0:
            raise ProxRLError(f"the observation space {observation_space} is empty; give it at least one entry")
        head = make_head(action_space, config)
        actor = make_actor(config, inputs, action_space, head.inputs)
        critic = make_critic(config, inputs)
        actor_size, critic_size = actor.memory.output_size, (critic or actor).memory.output_size
        action: nn.Module = nn.Identity()
        if config.policy is None:
            head, action = explore(config, action_space, head, orthogonal(nn.Linear(actor_size, head.inputs), ACTION_GAIN))
        value = nn.Identity() if config.value else orthogonal(nn.Linear(critic_size, 1), gain=1.0)
        policy = Policy(preprocess, guard, actor, critic, action, head, value)
    policy.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's type stubs
    # With dropout the policy in the update would differ from the one that acted.
    return policy.eval()


def make_actor(config: Config, space: gymnasium.Space, action_space: gymnasium.Space, inputs: int) -> Trunk:
    """Return the policy's encoder and memory."""
    keys, whole = config.actor_keys, space
    space = space if keys is None else select_space(space, keys, flag("actor_keys"))
    if config.policy is None:
        network, size = make_encoder(config, space, whole)
    else:
        network = plugin_module("policy", config.policy, (space, action_space), config.policy_kwargs)
        size = output_size("policy", config.policy, network, space)
        if size != inputs:
            raise ProxRLError(f"--policy {config.policy} gives {size} numbers per row, but {action_space} takes {inputs}")
    return make_trunk(config, network if keys is None else Select(keys, network), size)


def make_critic(config: Config, space: gymnasium.Space) -> Trunk | None:
    """Return the value's encoder and memory; None if they are the actor's."""
    if shares_trunk(config, space):
        return None
    keys, whole = config.critic_keys, space
    space = space if keys is None else select_space(space, keys, flag("critic_keys"))
    if config.value is None:
        network, size = make_encoder(config, space, whole)
    else:
        network = plugin_module("value", config.value, (space,), config.value_kwargs)
        size = output_size("value", config.value, network, space)
        if size != 1:
            raise ProxRLError(f"--value {config.value} gives {size} numbers per row, but a value is one")
    return make_trunk(config, network if keys is None else Select(keys, network), size)


def add_value_streams(policy: Policy, count: int, seed: int) -> None:
    """Give the last layer of the value this many outputs, one for each value stream. It stays the same module, because learners
    may hold it.
    """
    if count == 1:
        return
    if not isinstance(policy.value, nn.Linear):
        raise ProxRLError("a bonus with its own value stream needs ProxRL's value network; leave --value out")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer_seed(seed, Purpose.WEIGHTS, count))
        layer = orthogonal(nn.Linear(policy.value.in_features, count), gain=1.0)
    layer.to(policy.value.weight.device)
    policy.value.out_features, policy.value.weight, policy.value.bias = count, layer.weight, layer.bias


def make_trunk(config: Config, encoder: nn.Module, size: int) -> Trunk:
    """Put the memory behind an encoder that has this number of outputs."""
    return Trunk(encoder, make_memory(config, size))


def make_memory(config: Config, inputs: int) -> PolicyMemory:
    """Return the memory that --memory names, for features of size `inputs`."""
    if config.memory is None:
        return NoMemory(inputs)
    width, layers = config.memory_size, config.memory_layers
    if config.memory == "transformer":
        return TransformerMemory(inputs, width, layers, config.memory_heads, config.memory_window)
    return RecurrentMemory(config.memory, inputs, width, layers)


def shares_trunk(config: Config, space: gymnasium.Space) -> bool:
    """Return whether policy and value share an encoder: as --trunk says, or with auto for images (Atari detail 8).

    With auto they don't share it if another setting needs a separate value network.
    """
    if config.trunk != "auto":
        return config.trunk == "shared"
    separate = config.policy, config.value, config.value_epochs, config.value_learning_rate, config.value_optimizer
    return has_image(space) and not any((*separate, config.actor_keys, config.critic_keys))


def make_encoder(config: Config, space: gymnasium.Space, whole: gymnasium.Space | None = None) -> tuple[nn.Module, int]:
    """Return the encoder that --encoder names, or the one that suits the space, and the number of its outputs.

    `whole` is the space before --actor-keys or --critic-keys chose some of its keys, if they did.
    """
    if config.encoder is not None and ":" in config.encoder:
        plugin = plugin_module("encoder", config.encoder, (space,), config.encoder_kwargs)
        return plugin, output_size("encoder", config.encoder, plugin, space)
    if config.encoder not in (None, MLP_NAME, SPLIT_NAME, *IMAGE_ENCODERS):
        known = ", ".join((MLP_NAME, *IMAGE_ENCODERS, SPLIT_NAME))
        raise ProxRLError(f"--encoder {config.encoder}: there is no such encoder; use {known}, or yours as module:callable")
    # Stacking puts the channels first, whichever axis of a single image holds them.
    channels: Channels = "first" if stack_size(config.env, config.frame_stack) > 1 else config.image_channels
    encoder: MLP | ImageEncoder | Mixed | SplitEncoder
    if config.encoder == SPLIT_NAME:
        encoder = make_split_encoder(config, space, space if whole is None else whole, channels)
    elif config.encoder == MLP_NAME or not has_image(space):
        if config.encoder in IMAGE_ENCODERS:
            raise ProxRLError(f"--encoder {config.encoder} is for images, but the observation space is {space}; leave it out")
        encoder = MLP(space, config.hidden_sizes, config.activation)
    elif is_image(space):
        encoder = IMAGE_ENCODERS[config.encoder or default_encoder(space, channels)](space, channels)
    else:
        encoder = Mixed(space, config.encoder, config.hidden_sizes, config.activation, channels)
    return encoder, encoder.output_size


def plugin_module(name: str, text: str, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    """Build the module that the setting `name` describes by `text`, module:callable."""
    module = build_plugin(name, text, arguments, kwargs)
    if not isinstance(module, nn.Module):
        raise ProxRLError(f"{flag(name)} {text} returned {type(module).__name__}, but must return a torch.nn.Module")
    return module


def output_size(name: str, text: str, module: nn.Module, space: gymnasium.Space) -> int:
    """Return the number of a module's outputs per row, by calling it with two rows, and with one, which finds a `squeeze()`."""
    sizes = [_try_module(f"{flag(name)} {text}", module.eval(), space, rows, flat=name == "value") for rows in (2, 1)]
    return sizes[0]


def _try_module(label: str, module: nn.Module, space: gymnasium.Space, rows: int, flat: bool) -> int:
    """Return the number of outputs per row, or raise an error if the module does not keep its contract."""
    obs = tree_map(lambda leaf: torch.from_numpy(np.zeros((rows, *leaf.shape), leaf.dtype)), space_tree(space))
    with torch.enable_grad():
        products = [torch.ones(leaf.shape, requires_grad=True) * leaf for leaf in tree_leaves(obs)]
    try:
        with torch.no_grad():
            output = module(obs)
    except Exception as error:
        raise ProxRLError(f"{label} can't read observations of {space}: {one_line(error)}") from error
    if not isinstance(output, Tensor) or output.dim() not in ((1, 2) if flat else (2,)) or len(output) != rows:
        got = f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise ProxRLError(f"{label} gives {got} for {rows} rows, but must give a tensor of one row for each: [{rows}, n]")
    if output.dtype != torch.float32:
        raise ProxRLError(f"{label} gives {output.dtype}, but must give torch.float32; end it with .float()")
    if _factors_written_to(products):
        raise ProxRLError(f"{label} writes to the observations, which others see too; copy first: obs / 255, not obs.div_(255)")
    return 1 if output.dim() == 1 else output.shape[1]


def _factors_written_to(products: list[Tensor]) -> bool:
    """Return whether a factor of a product was written to, even if its values are the same: zeros divided by 255 stay zeros.

    Autograd refuses to differentiate a product one of whose factors was modified in place.
    """
    try:
        torch.autograd.backward([product.sum() for product in products])
    except RuntimeError:
        return True
    return False
