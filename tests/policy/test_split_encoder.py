"""`--encoder split`: what goes to which encoder, what goes straight to the trunk, and inputs that can't be split."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import proxrl
from proxrl.config import Config
from proxrl.errors import ProxRLError
from proxrl.policy.image_encoders import ImpalaCNN, SmallCNN
from proxrl.policy.networks import make_policy
from proxrl.policy.split_encoder import SplitEncoder

FLAT = spaces.Box(-1, 1, (6,), np.float32)
BOTH = spaces.Dict(
    {
        "body": spaces.Box(-1, 1, (3,), np.float32),
        "camera": spaces.Box(0, 255, (7, 7, 3), np.uint8),
        "sense": spaces.Dict({"lidar": spaces.Box(-1, 1, (2, 2), np.float32), "map": spaces.MultiDiscrete([2, 3])}),
        "luck": spaces.Discrete(2),
    }
)


def make(space: gymnasium.Space, **changes: Any) -> Any:
    kwargs = changes.pop("encoder_kwargs", {"exteroceptive": "2:5"})
    config = Config(**{"hidden_sizes": (8, 5), "encoder": "split", "encoder_kwargs": kwargs, **changes})
    return make_policy(config, space, spaces.Discrete(2))


def trunk_inputs(encoder: SplitEncoder, obs: Any) -> torch.Tensor:
    """Return what the trunk reads, in its order."""
    read: list[torch.Tensor] = []

    def record(_: Any, inputs: Any) -> None:
        read.append(torch.cat([leaf.flatten(1) for leaf in inputs[0]], 1))

    handle = encoder.trunk.register_forward_pre_hook(record)
    encoder(obs)
    handle.remove()
    return read[0]


def test_a_range_is_encoded_and_the_rest_goes_straight_to_the_trunk() -> None:
    obs = torch.randn((4, 6), generator=torch.Generator().manual_seed(0))
    for words in ("2:5", "3,2,4:5", ["2:4", 4]):
        encoder = make(FLAT, encoder_kwargs={"exteroceptive": words, "sizes": 7}).actor
        assert [tuple(layer.weight.shape) for layer in encoder.encoders[0].layers] == [(7, 3)]
        expected = torch.cat([encoder.encoders[0](obs[:, 2:5]), obs[:, :2], obs[:, 5:]], 1)
        assert torch.equal(trunk_inputs(encoder, obs), expected)
        assert encoder(obs).shape == (4, 5)
        assert encoder(obs[:0]).shape == (0, 5)  # a rank's share of a minibatch


def test_several_encoders_have_their_own_sizes_and_may_take_everything() -> None:
    kwargs = {"near": ":2", "far": "2:", "near_sizes": [9, 3], "sizes": "4"}
    encoder = make(FLAT, encoder_kwargs=kwargs).actor
    obs = torch.randn((4, 6), generator=torch.Generator().manual_seed(0))
    far, near = encoder.encoders  # in the order of their names, whatever the order of the arguments is
    assert torch.equal(trunk_inputs(encoder, obs), torch.cat([far(obs[:, 2:]), near(obs[:, :2])], 1))
    assert [layer.out_features for layer in near.layers] == [9, 3]
    reversed_kwargs = dict(reversed(kwargs.items()))
    assert make(FLAT, encoder_kwargs=reversed_kwargs).state_dict().keys() == make(FLAT, encoder_kwargs=kwargs).state_dict().keys()
    assert torch.equal(make(FLAT, encoder_kwargs=reversed_kwargs).actor(obs), encoder(obs))
    # Without sizes, an encoder has the layers of --hidden-sizes.
    assert [layer.out_features for layer in make(FLAT).actor.encoders[0].layers] == [8, 5]


def test_ranges_of_a_stack_are_those_of_a_single_observation() -> None:
    stacked = spaces.Box(-1, 1, (18,), np.float32)
    encoder = make(stacked, frame_stack=3).actor
    obs = torch.arange(18.0)[None]
    encoded = torch.tensor([[2.0, 3, 4, 8, 9, 10, 14, 15, 16]])
    direct = torch.tensor([[0.0, 1, 5, 6, 7, 11, 12, 13, 17]])
    assert torch.equal(trunk_inputs(encoder, obs), torch.cat([encoder.encoders[0](encoded), direct], 1))
    with pytest.raises(ProxRLError, match="which has 6 numbers"):
        make(stacked, frame_stack=3, encoder_kwargs={"exteroceptive": "6:8"})


def rows(space: gymnasium.Space, count: int = 3) -> Any:
    space.seed(1)
    return [space.sample() for _ in range(count)]


def batch(policy: Any, samples: list[Any]) -> Any:
    def stacked(*leaves: Any) -> Any:
        if isinstance(leaves[0], dict):
            return {key: stacked(*(leaf[key] for leaf in leaves)) for key in leaves[0]}
        return torch.from_numpy(np.stack(leaves))

    return policy.preprocess(stacked(*samples))


def test_keys_of_a_dict_images_and_nested_keys() -> None:
    policy = make(BOTH, encoder_kwargs={"seen": "camera,sense/lidar", "map": "sense/map"}, trunk="separate")
    obs = batch(policy, rows(BOTH))
    encoder = policy.actor
    seen, camera = obs["sense"], encoder.image_encoders[0]
    assert isinstance(camera, SmallCNN)
    encoded = encoder.encoders[0](seen["map"]), encoder.encoders[1](seen["lidar"])
    parts = [camera(obs["camera"]), *encoded, obs["body"], obs["luck"]]
    assert torch.equal(trunk_inputs(encoder, obs), torch.cat(parts, 1))
    # A key stands for all that is below it, and an image has convolutions even if it is not named.
    whole = make(BOTH, encoder_kwargs={"seen": "sense", "images": "impala"})
    assert isinstance(whole.actor.image_encoders[0], ImpalaCNN)
    assert whole.critic is None  # shared, as with any image
    assert whole.actor.encoders[0].layers[0].in_features == 4 + 5


def test_keys_that_only_one_of_actor_and_critic_sees() -> None:
    kwargs = {"far": "sense/lidar", "guess": "luck"}
    keys = {"actor_keys": ("body", "sense"), "critic_keys": ("luck", "body")}
    policy = make(BOTH, encoder_kwargs=kwargs, **keys)
    obs = batch(policy, rows(BOTH))
    actor, critic = policy.actor.encoder, policy.critic.encoder
    far = actor.encoders[0](obs["sense"]["lidar"])
    inputs = trunk_inputs(actor, {key: obs[key] for key in keys["actor_keys"]})
    assert torch.equal(inputs, torch.cat([far, obs["body"], obs["sense"]["map"]], 1))
    inputs = trunk_inputs(critic, {key: obs[key] for key in keys["critic_keys"]})
    assert torch.equal(inputs, torch.cat([critic.encoders[0](obs["luck"]), obs["body"]], 1))
    outputs = policy.core(obs, (), None)
    assert outputs.value.shape == (3, 1)
    assert outputs.distribution.entropy().shape == (3,)


@pytest.mark.parametrize(
    ("space", "kwargs", "message"),
    [
        (FLAT, {}, "must know what gets an encoder of its own"),
        (FLAT, {"a": "4:7"}, "a=4:7 reaches beyond the observation, which has 6 numbers, 0:6"),
        (FLAT, {"a": 6}, "a=6 reaches beyond"),
        (FLAT, {"a": "4:4"}, "a=4:4 is empty"),
        (FLAT, {"a": "lidar"}, "the observation is flat, so this must be a range of its 6 numbers, such as 4:6"),
        (FLAT, {"a": "-2:"}, "must be a range"),
        (FLAT, {"a": "1:4", "b": "3:"}, "b=3: overlaps with a range of a"),
        (FLAT, {"a": "1:4,3"}, "a=3 overlaps with a range of a"),
        (FLAT, {"a": "0:3,3:6"}, "a=0:3,3:6 is the whole observation"),
        (FLAT, {"a": "1:4", "b_sizes": "3"}, "b_sizes: there is no encoder 'b'; there is a"),
        (FLAT, {"a": "1:4", "sizes": "wide"}, "sizes=wide: the widths of layers are whole numbers"),
        (FLAT, {"a": ""}, "a=: an encoder takes ranges or keys"),
        (FLAT, {"a": {"b": 1}}, "an encoder takes ranges or keys"),
        (FLAT, {"a": "1:4", "images": "big"}, "images=big: there is no such encoder of images; use nature, impala, small"),
        (BOTH, {"a": "sense/radar"}, "the observation has the keys body, camera, luck, sense/lidar, sense/map"),
        (BOTH, {"a": "2:4"}, "the observation has the keys"),
        (BOTH, {"a": "sense", "b": "sense/map"}, "b=sense/map overlaps with a, which has sense/map already"),
        (BOTH, {"a": ["body", "camera", "sense", "luck"]}, "is the whole observation"),
        (BOTH["camera"], {"a": "0:4"}, "the observation is a single image"),
    ],
)
def test_what_can_not_be_split(space: gymnasium.Space, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ProxRLError) as caught:
        make(space, encoder_kwargs=kwargs)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_encoders_without_arguments_refuse_them() -> None:
    with pytest.raises(ProxRLError, match="--encoder mlp takes no --encoder-kwargs"):
        Config(encoder="mlp", encoder_kwargs={"exteroceptive": "2:4"}).validate()


class Explorer(gymnasium.Env):
    """Episodes of five steps with every kind of entry, and an action that is not allowed."""

    observation_space, action_space = BOTH, spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.observation_space.seed(seed)
        self.time = 0
        return self.observation_space.sample(), {"action_mask": np.array([1, 0, 1], np.int8)}

    def step(self, action: int) -> Any:
        assert action != 1
        self.time += 1
        return self.observation_space.sample(), 1.0, self.time == 5, False, {"action_mask": np.array([1, 0, 1], np.int8)}


def test_a_run_with_masks_stacks_memory_and_keys_learns_and_acts(tmp_path: Any) -> None:
    settings: dict[str, Any] = {
        "encoder": "split",
        "encoder_kwargs": {"far": ["camera", "sense/lidar"], "far_sizes": "6"},
        "normalize_observations": True,
        "frame_stack": 2,
        "memory": "gru",
        "memory_size": 8,
        "actor_keys": ["body", "camera", "sense"],
        "critic_keys": ["luck", "body"],
    }
    sizes = {"num_envs": 2, "rollout_steps": 8, "num_minibatches": 2, "epochs": 2, "total_steps": 32, "hidden_sizes": [8]}
    result = proxrl.train(Explorer, runs_dir=tmp_path, quiet=True, tensorboard=False, **settings, **sizes)
    assert result.finished
    agent = proxrl.load(result.path)
    obs = BOTH.sample()
    del obs["luck"]  # only the critic has it
    assert agent.act(obs, mask=np.array([0, 0, 1])) == 2
    # The actor was trained: its encoder of the lidar is no longer the initial one.
    initial = make_policy(agent.config, agent.observation_space, agent.action_space)
    changed = agent.policy.actor.encoder.encoders[0].layers[0].weight - initial.actor.encoder.encoders[0].layers[0].weight
    assert changed.abs().max() > 0
