"""Images: the choice of the encoder and of the axis of channels, the scaling of bytes, and the memory layout."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import proxrl
from harness import assemble, collect, train
from proxrl.build import build_compute
from proxrl.config import Config
from proxrl.config.parse import parse_settings, read_toml
from proxrl.engine.flat import FlatParameters
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.envs.spaces import is_image
from proxrl.errors import ProxRLError
from proxrl.policy.encoders import MLP
from proxrl.policy.image_encoders import ImpalaCNN, Mixed, NatureCNN, SmallCNN, ToFloat, image_assumptions
from proxrl.policy.networks import make_policy
from proxrl.policy.policy import Policy

ATARI = spaces.Box(0, 255, (4, 84, 84), np.uint8)
PROCGEN = spaces.Box(0, 255, (3, 64, 64), np.uint8)
CAMERA = spaces.Box(0, 255, (60, 80, 3), np.uint8)
GRID = spaces.Dict(image=spaces.Box(0, 255, (7, 7, 3), np.uint8), direction=spaces.Discrete(4), speed=spaces.Box(-1, 1, (2,)))
ACTION = spaces.Discrete(6)


def random_images(space: spaces.Box, rows: int = 3) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (rows, *space.shape), dtype=np.uint8))


def test_what_is_an_image() -> None:
    assert all(map(is_image, (ATARI, PROCGEN, CAMERA, GRID["image"])))
    numbers = (
        spaces.Box(0, 255, (4, 84, 84), np.float32),
        spaces.Box(0, 255, (128,), np.uint8),
        spaces.Box(0, 255, (2, 2, 2), np.uint8),
    )
    assert not any(map(is_image, numbers))


@pytest.mark.parametrize(
    ("space", "settings", "expected", "shared"),
    [
        (ATARI, {}, NatureCNN, True),
        (CAMERA, {}, NatureCNN, True),
        (PROCGEN, {"encoder": "impala"}, ImpalaCNN, True),
        (GRID["image"], {}, SmallCNN, True),
        (GRID, {}, Mixed, True),
        (ATARI, {"trunk": "separate"}, NatureCNN, False),
        (ATARI, {"value_epochs": 2}, NatureCNN, False),
        (ATARI, {"encoder": "mlp"}, MLP, True),
        (spaces.Box(-1, 1, (4,), np.float32), {}, MLP, False),
    ],
)
def test_encoders_are_chosen_by_observation_or_name(space: Any, settings: dict[str, Any], expected: type, shared: bool) -> None:
    policy = make_policy(Config(**settings), space, ACTION)
    assert type(policy.actor) is expected
    assert (policy.critic is None) is shared


@pytest.mark.parametrize(
    ("space", "name", "words"),
    [
        (GRID["image"], "nature", "36 pixels or more each way, not 7 x 7"),
        (spaces.Box(-1, 1, (4,), np.float32), "impala", "--encoder impala is for images"),
        (ATARI, "resnet", "there is no such encoder; use mlp, nature, impala, small"),
    ],
)
def test_encoders_that_do_not_fit_raise_an_error(space: Any, name: str, words: str) -> None:
    with pytest.raises(ProxRLError, match=words):
        make_policy(Config(encoder=name), space, ACTION)


@pytest.mark.parametrize("space", [ATARI, CAMERA])
def test_bytes_become_unit_floats_with_the_channels_first_in_shape_and_last_in_memory(space: spaces.Box) -> None:
    images = random_images(space)
    floats = ToFloat(space)(images)
    expected = images if space is ATARI else images.permute(0, 3, 1, 2)
    assert torch.equal(floats, expected.float())
    # The first layer of every encoder scales them.
    for encoder in (NatureCNN(space), SmallCNN(space), ImpalaCNN(space)):
        first: Any = encoder.convolutions[0]
        plain = torch.nn.functional.conv2d(floats / 255, first.weight, first.bias, first.stride, first.padding)
        assert torch.allclose(first(floats), plain, atol=1e-4)
    assert floats.is_contiguous(memory_format=torch.channels_last)
    assert images.dtype == torch.uint8


def image(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


@pytest.mark.parametrize("shape", [(84, 84, 4), (4, 84, 84), (64, 64, 3), (60, 80, 3), (7, 7, 3), (12, 84, 84), (84, 84, 12)])
def test_the_channels_of_usual_images_need_no_message(shape: tuple[int, ...]) -> None:
    policy = make_policy(Config(), image(*shape), ACTION)
    assert policy.actor.to_float.channels == min(shape)
    assert image_assumptions(policy) == []


@pytest.mark.parametrize(
    ("shape", "assumed", "other"),
    [
        ((17, 9, 9), "17 x 9 pixels with 9 channels (last axis)", "first"),
        ((9, 9, 17), "9 x 17 pixels with 9 channels (first axis)", "last"),
        ((119, 8, 8), "119 x 8 pixels with 8 channels (last axis)", "first"),
        ((10, 10, 10), "10 x 10 pixels with 10 channels (first axis)", "last"),
        ((60, 80, 12), "60 x 80 pixels with 12 channels (last axis)", "first"),
    ],
)
def test_a_guess_of_the_channels_is_reported_with_its_setting(shape: tuple[int, ...], assumed: str, other: Any) -> None:
    config = Config(encoder="small", trunk="separate")
    (line,) = image_assumptions(make_policy(config, image(*shape), ACTION))
    assert assumed in line
    assert line.endswith(f"use --image-channels {other}")
    mixed = spaces.Dict(board=image(*shape), turn=spaces.Discrete(2))
    assert image_assumptions(make_policy(config, mixed, ACTION)) == [line]
    for changes in ({"image_channels": other}, {"encoder": "mlp"}):
        assert image_assumptions(make_policy(config.replace(**changes), image(*shape), ACTION)) == []


@pytest.mark.parametrize(("shape", "channels"), [((17, 9, 9), "first"), ((9, 9, 17), "last")])
def test_the_channels_of_board_planes_can_be_set(shape: tuple[int, ...], channels: str) -> None:
    config = Config(image_channels=channels)
    mixed = spaces.Dict(board=image(*shape), turn=spaces.Discrete(2))
    (encoder,) = make_policy(config, mixed, ACTION).actor.images
    for network in (make_policy(config, image(*shape), ACTION).actor, encoder):
        assert network.convolutions[0].weight.shape == (16, 17, 3, 3)
        pixels = random_images(image(*shape))
        planes = pixels if channels == "first" else pixels.permute(0, 3, 1, 2)
        assert torch.equal(network.to_float(pixels), planes.float())


def test_a_run_reports_the_guess_of_the_channels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Board(gymnasium.Env):
        observation_space, action_space = image(17, 9, 9), spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return np.zeros((17, 9, 9), np.uint8), {}

        def step(self, action: Any) -> Any:
            return np.zeros((17, 9, 9), np.uint8), 0.0, True, False, {}

    settings: dict[str, Any] = {"num_envs": 1, "rollout_steps": 8, "num_minibatches": 1, "total_steps": 8, "runs_dir": tmp_path}
    proxrl.train(Board, quiet=False, **settings)
    assert "taken for 17 x 9 pixels with 9 channels (last axis)" in " ".join(capsys.readouterr().out.split())
    path = proxrl.train(Board, quiet=False, image_channels="first", name="planes", **settings).path
    assert "taken for" not in capsys.readouterr().out
    # Runs of earlier versions have no such setting.
    config = path / "config.toml"
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith("image_channels")))
    assert parse_settings(read_toml(config)).image_channels == "auto"


def test_nature_cnn_by_hand() -> None:
    network = NatureCNN(ATARI)
    assert [tuple(layer.weight.shape) for layer in network.convolutions if isinstance(layer, torch.nn.Conv2d)] == [
        (32, 4, 8, 8),
        (64, 32, 4, 4),
        (64, 64, 3, 3),
    ]
    assert tuple(network.linear.weight.shape) == (512, 3136)
    hidden = random_images(ATARI).float() / 255
    with torch.no_grad():
        for layer, stride in ((0, 4), (2, 2), (4, 1)):
            convolution: Any = network.convolutions[layer]
            hidden = torch.relu(torch.nn.functional.conv2d(hidden, convolution.weight, convolution.bias, stride))
        expected = torch.relu(hidden.flatten(1) @ network.linear.weight.T + network.linear.bias)
        assert torch.allclose(network(random_images(ATARI)), expected, atol=1e-4)
        rows = network.convolutions[0].weight.flatten(1)
        assert torch.allclose(rows @ rows.T, 2 * torch.eye(32), atol=1e-4)  # orthogonal, gain sqrt(2)


def test_impala_cnn_by_hand() -> None:
    network = ImpalaCNN(PROCGEN)
    assert tuple(network.linear.weight.shape) == (256, 32 * 8 * 8)
    assert sum(isinstance(module, torch.nn.Conv2d) for module in network.modules()) == 3 * 5
    residual: Any = network.convolutions[2]
    image = torch.randn((2, 16, 8, 8), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        by_hand = image + residual.second(torch.relu(residual.first(torch.relu(image))))
        assert torch.equal(residual(image), by_hand)
        for parameter in residual.parameters():
            parameter.zero_()
        assert torch.equal(residual(image), image)


def test_mixed_observations_use_every_entry() -> None:
    policy = make_policy(Config(hidden_sizes=(8,)), GRID, ACTION)
    rng = np.random.default_rng(0)
    obs = {
        "image": random_images(GRID["image"]),
        "direction": torch.tensor([0, 1, 2]),
        "speed": torch.from_numpy(rng.normal(size=(3, 2)).astype(np.float32)),
    }
    with torch.no_grad():
        before = policy(obs, (), None)[1]
        assert policy.actor(policy.preprocess(obs)).shape == (3, 128 + 8)
        for key, other in (("image", 255 - obs["image"]), ("direction", torch.tensor([3, 3, 3])), ("speed", -obs["speed"])):
            assert not torch.allclose(policy({**obs, key: other}, (), None)[1], before), key


def gradients(policy: Policy, images: torch.Tensor) -> torch.Tensor:
    distribution, value, _ = policy(images, (), None)
    (distribution.entropy().sum() + value.sum()).backward()
    return torch.cat([parameter.grad.flatten() for parameter in policy.actor.parameters()])  # type: ignore[union-attr]


def test_the_flat_buffer_keeps_channels_last_weights_and_their_gradients() -> None:
    policy, twin = (make_policy(Config(), ATARI, ACTION) for _ in range(2))
    flat = FlatParameters(policy.groups())
    weight = policy.actor.convolutions[1 * 2].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert weight.grad.is_contiguous(memory_format=torch.channels_last)
    assert weight.untyped_storage().data_ptr() == flat.values.untyped_storage().data_ptr()
    twin.to(memory_format=torch.contiguous_format)
    images = random_images(ATARI, 8)
    assert torch.allclose(gradients(policy, images), gradients(twin, images), rtol=1e-3, atol=1e-4)
    flat.values.mul_(0.5)
    assert torch.allclose(policy.actor.linear.weight, 0.5 * twin.actor.linear.weight)


def test_bfloat16_is_accurate_or_raises_an_error_if_the_cpu_lacks_it() -> None:
    config = Config(precision="bfloat16")
    policy = make_policy(config, ATARI, ACTION)
    parameters = FlatParameters(policy.groups())
    if not torch.cpu._is_avx512_bf16_supported():
        with pytest.raises(ProxRLError, match="this CPU has no instructions"):
            build_compute(config, policy, parameters)
        return
    compute = build_compute(config, policy, parameters)
    plain = build_compute(config.replace(precision="float32"), policy, parameters)
    images = random_images(ATARI, 8)
    values = [c.values(images, (), None) for c in (compute, plain)]  # type: ignore[attr-defined]
    assert values[0].dtype == torch.float32
    assert torch.allclose(*values, atol=0.05)


@pytest.mark.parametrize("stack", [1, 4])
def test_what_acting_remembers_is_what_evaluating_computes(stack: int) -> None:
    class Frames(gymnasium.Env):
        observation_space = spaces.Box(0, 255, (4, 40, 40), np.uint8)
        action_space = spaces.Discrete(3)

        def look(self) -> Any:
            frame = self.np_random.integers(0, 256, (1, 40, 40), dtype=np.uint8)
            self.stack = np.concatenate([self.stack[1:], frame])
            return self.stack

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.stack, self.time = np.zeros((4, 40, 40), np.uint8), 0
            return self.look(), {}

        def step(self, action: Any) -> Any:
            self.time += 1
            return self.look(), 1.0, False, self.time == 5, {}

    config = Config(num_envs=2, rollout_steps=12, num_minibatches=2, total_steps=48)
    parts = assemble(config, InProcessEnvs([Frames] * 2, frame_stack=stack))
    assert parts.policy.critic is None
    rollout = collect(parts)
    assert len(rollout.outputs) == 12
    # Acting again, as a callback may, changes nothing of what the rollout has stored.
    parts.compute.act(rollout.obs[3], (), np.zeros(2, np.bool_), None)
    quick = parts.compute.evaluate(rollout)
    again = parts.compute.evaluate(dataclasses.replace(rollout, outputs=[]))
    for ours, theirs in zip(quick[1:], again[1:], strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)
    rows = torch.tensor([3, 17, 0])
    assert torch.equal(quick.obs[rows], torch.from_numpy(np.stack([rollout.obs[t] for t in range(12)])).flatten(0, 1)[rows])
    before = parts.parameters.values.clone()
    train(parts)
    assert not torch.equal(parts.parameters.values, before)


def test_initial_policy_on_images_is_nearly_uniform() -> None:
    policy = make_policy(Config(), ATARI, ACTION)
    with torch.no_grad():
        assert policy(random_images(ATARI), (), None)[0].entropy().min() > math.log(6) - 0.01
