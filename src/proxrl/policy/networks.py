"""Which networks a policy is made of: MLPs by flag, or modules of the user's own, in the place of an encoder or whole.

An own part is named by `module:callable`, so that config.toml can name it too:

--encoder  build(observation_space, **kwargs)                from observations to features [B, n], any n
--policy   build(observation_space, action_space, **kwargs)  from observations to what the head takes [B, action_inputs]
--value    build(observation_space, **kwargs)                from observations to values [B] or [B, 1]

The observation space that they get is that of prepared observations: float Boxes of the observation's own shapes, bytes where
it is an image, one-hot vectors for discrete entries, in the same Dicts and Tuples. So is what their modules are called with.
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
from proxrl.errors import ProxRLError, one_line
from proxrl.policy.encoders import MLP, Select, orthogonal, select_space
from proxrl.policy.images import IMAGE_ENCODERS, ImageEncoder, Mixed, default_encoder, has_image
from proxrl.policy.make_head import make_head
from proxrl.policy.memory import NoMemory
from proxrl.policy.policy import Policy
from proxrl.policy.preprocess import make_preprocess

# Small enough that the first policy is nearly uniform whatever the features (core detail 2).
ACTION_GAIN = 0.01
MLP_NAME = "mlp"


def make_policy(config: Config, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> Policy:
    """By default separate MLPs for policy and value (core detail 13). The seed alone fixes the weights, on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer_seed(config.seed, Purpose.WEIGHTS))
        preprocess = make_preprocess(observation_space, config.normalize_observations, config.clip_observations)
        guard = Guard(observation_space, action_space)
        seen = preprocess.output_space["observation"] if guard.masked else preprocess.output_space  # type: ignore[index]
        if spaces.flatdim(seen) == 0:
            raise ProxRLError(f"the observation space {observation_space} holds nothing to see; give it an entry")
        head = make_head(action_space, config)
        actor, actor_size = make_actor(config, seen, action_space, head.inputs)
        critic, critic_size = make_critic(config, seen, actor_size)
        action = nn.Identity() if config.policy else orthogonal(nn.Linear(actor_size, head.inputs), ACTION_GAIN)
        value = nn.Identity() if config.value else orthogonal(nn.Linear(critic_size, 1), gain=1.0)
        policy = Policy(preprocess, guard, actor, critic, NoMemory(), action, head, value)
    policy.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch knows it, its stubs do not
    # Dropout would make the policy that learns another one than the policy that acted.
    return policy.eval()


def make_actor(config: Config, space: gymnasium.Space, action_space: gymnasium.Space, inputs: int) -> tuple[nn.Module, int]:
    """The network behind the policy, and how many numbers it gives."""
    keys = config.actor_keys
    sees = space if keys is None else select_space(space, keys, flag("actor_keys"))
    if config.policy is None:
        network, size = make_encoder(config, sees)
    else:
        network = plugin_module("policy", config.policy, (sees, action_space), config.policy_kwargs)
        size = output_size("policy", config.policy, network, sees)
        if size != inputs:
            raise ProxRLError(f"--policy {config.policy} gives {size} numbers per row, but {action_space} takes {inputs}")
    return (network if keys is None else Select(keys, network)), size


def make_critic(config: Config, space: gymnasium.Space, actor_size: int) -> tuple[nn.Module | None, int]:
    """The network behind the value, and how many numbers it gives; None where it is the actor's."""
    if shares_trunk(config, space):
        return None, actor_size
    keys = config.critic_keys
    sees = space if keys is None else select_space(space, keys, flag("critic_keys"))
    if config.value is None:
        network, size = make_encoder(config, sees)
    else:
        network = plugin_module("value", config.value, (sees,), config.value_kwargs)
        size = output_size("value", config.value, network, sees)
        if size != 1:
            raise ProxRLError(f"--value {config.value} gives {size} numbers per row, but a value is one")
    return (network if keys is None else Select(keys, network)), size


def shares_trunk(config: Config, space: gymnasium.Space) -> bool:
    """As told; otherwise one network for images (Atari detail 8) unless something wants a value network of its own."""
    if config.trunk != "auto":
        return config.trunk == "shared"
    apart = config.policy, config.value, config.value_epochs, config.value_learning_rate, config.value_optimizer
    return has_image(space) and not any((*apart, config.actor_keys, config.critic_keys))


def make_encoder(config: Config, space: gymnasium.Space) -> tuple[nn.Module, int]:
    """The encoder that was asked for, or the one that suits what is observed."""
    if config.encoder is not None and ":" in config.encoder:
        own = plugin_module("encoder", config.encoder, (space,), config.encoder_kwargs)
        return own, output_size("encoder", config.encoder, own, space)
    if config.encoder not in (None, MLP_NAME, *IMAGE_ENCODERS):
        known = ", ".join((MLP_NAME, *IMAGE_ENCODERS))
        raise ProxRLError(f"--encoder {config.encoder}: there is no such encoder; use {known}, or yours as module:callable")
    encoder: MLP | ImageEncoder | Mixed
    if config.encoder == MLP_NAME or not has_image(space):
        if config.encoder in IMAGE_ENCODERS:
            raise ProxRLError(f"--encoder {config.encoder} is for images, but the observation space is {space}; leave it out")
        encoder = MLP(space, config.hidden_sizes, config.activation)
    elif is_image(space):
        encoder = IMAGE_ENCODERS[config.encoder or default_encoder(space, config.image_channels)](space, config.image_channels)
    else:
        encoder = Mixed(space, config.encoder, config.hidden_sizes, config.activation, config.image_channels)
    return encoder, encoder.output_size


def plugin_module(name: str, text: str, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    module = build_plugin(name, text, arguments, kwargs)
    if not isinstance(module, nn.Module):
        raise ProxRLError(f"{flag(name)} {text} returned {type(module).__name__}, but must return a torch.nn.Module")
    return module


def output_size(name: str, text: str, module: nn.Module, space: gymnasium.Space) -> int:
    """Numbers per row that a module gives, by asking it: for two rows, and for one, where a `squeeze()` would lose it."""
    sizes = [_asked(f"{flag(name)} {text}", module.eval(), space, rows, flat=name == "value") for rows in (2, 1)]
    return sizes[0]


def _asked(label: str, module: nn.Module, space: gymnasium.Space, rows: int, flat: bool) -> int:
    obs = tree_map(lambda leaf: torch.from_numpy(np.zeros((rows, *leaf.shape), leaf.dtype)), space_tree(space))
    versions = [leaf._version for leaf in tree_leaves(obs)]
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
    if versions != [leaf._version for leaf in tree_leaves(obs)]:
        raise ProxRLError(f"{label} writes to the observations, which others see too; copy first: obs / 255, not obs.div_(255)")
    return 1 if output.dim() == 1 else output.shape[1]
