"""`--freeze`: frozen parts stay as they are to the last bit, and the rest learns."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from harness import RecordingSession, Scripted, assemble, run_ranks, scripted, train
from proxrl import ppo
from proxrl.build import trainee
from proxrl.config import Config
from proxrl.engine.autograd import TorchCompute
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.errors import ProxRLError
from proxrl.ppo import Parts

SCRIPTS = [((4, "truncated"), (8, "terminated"))] * 4
BOX = spaces.Box(-1, 1, (2,), np.float32)


def frozen_config(*parts: str, **changes: Any) -> Config:
    sizes = {"num_envs": 4, "rollout_steps": 12, "num_minibatches": 2, "epochs": 2, "total_steps": 96, "hidden_sizes": (8,)}
    settings = {**sizes, "freeze": parts, "normalize_observations": True, "init_from": "a run", "weight_decay": 0.01}
    return Config(**{**settings, **changes}).validate()


def parts_of(config: Config, begun: int = 0) -> Parts:
    envs = [Scripted(n, script, BOX) for n, script in enumerate(SCRIPTS)]
    for env in envs:
        env.episode += begun  # it counts its own episodes
    return assemble(config, InProcessEnvs([lambda env=env: env for env in envs]))


def changed(config: Config) -> set[str]:
    """Return the modules of the policy that training changes; `log_std` is a part of the head."""
    parts = parts_of(config)
    before = {name: tensor.clone() for name, tensor in parts.policy.state_dict().items()}
    train(parts)
    after = parts.policy.state_dict()
    return {name.partition(".")[0] for name, tensor in before.items() if not torch.equal(tensor, after[name])}


EVERYTHING = {"preprocess", "actor", "critic", "memory", "critic_memory", "action", "head", "value"}
NO_MEMORY = EVERYTHING - {"memory", "critic_memory"}


@pytest.mark.parametrize(
    ("parts", "settings", "frozen"),
    [
        (("encoder",), {"memory": "gru", "memory_size": 6}, {"preprocess", "actor", "critic"}),
        (("memory",), {"memory": "lstm", "memory_size": 6}, {"memory", "critic_memory"}),
        (("head",), {}, {"action", "head"}),
        (("policy",), {}, {"preprocess", "actor", "action", "head"}),
        (("policy",), {"value_epochs": 2}, {"preprocess", "actor", "action", "head"}),  # its optimizer has nothing to do
        (("value",), {"value_epochs": 2}, {"preprocess", "critic", "value"}),
        (("value",), {"trunk": "shared"}, {"critic", "value"}),  # the encoder belongs to the policy, and its statistics too
        (("statistics", "value"), {"trunk": "shared", "optimizer": "adamw"}, {"preprocess", "critic", "value"}),
    ],
)
def test_frozen_parts_stay_bit_identical_and_the_rest_learns(
    parts: tuple[str, ...], settings: dict[str, Any], frozen: set[str]
) -> None:
    everything = EVERYTHING if "memory" in settings else NO_MEMORY
    everything = everything - ({"critic", "critic_memory"} if settings.get("trunk") == "shared" else set())
    assert changed(frozen_config(*parts, **settings)) == everything - frozen


def test_nothing_is_frozen_by_default() -> None:
    assert changed(frozen_config(freeze=None)) == NO_MEMORY


def test_frozen_parameters_have_no_state_of_an_optimizer_and_no_numpy_engine() -> None:
    whole, part = parts_of(frozen_config(freeze=None)), parts_of(frozen_config("encoder"))
    assert not isinstance(whole.compute, TorchCompute)
    assert isinstance(part.compute, TorchCompute)
    encoders = sum(parameter.numel() for network in (part.policy.actor, part.policy.critic) for parameter in network.parameters())
    assert len(whole.optimizer.tensors()["optimizer.0.mean"]) == len(part.optimizer.tensors()["optimizer.0.mean"]) + encoders


def test_a_resumed_run_with_a_frozen_part_learns_what_an_unbroken_one_does() -> None:
    config = frozen_config("encoder")
    whole, half, rest = parts_of(config), parts_of(config), parts_of(config, begun=2)
    assert train(whole).iteration == 2
    first = train(half, iterations=1)
    for name, tensor in trainee(rest).tensors().items():
        tensor.copy_(trainee(half).tensors()[name])
    session = RecordingSession(rest)
    session.step, session.iteration, session.episode_counts = first.step, first.iteration, [2] * 4
    ppo.train(rest, session)  # type: ignore[arg-type]
    for name, tensor in trainee(whole).tensors().items():
        assert torch.equal(tensor, trainee(rest).tensors()[name]), name


def test_two_ranks_freeze_and_learn_what_one_does() -> None:
    config = frozen_config("encoder", total_steps=48)

    def trained(world: Any) -> Any:
        first, count = (0, 4) if world.size == 1 else (2 * world.rank, 2)
        parts = assemble(config, InProcessEnvs(scripted(SCRIPTS, BOX)[first : first + count], first), world, first)
        train(parts)
        return parts.parameters.values.clone(), parts.policy.actor.layers[0].weight.clone()

    ((alone, encoder),) = run_ranks(1, trained)
    two = run_ranks(2, trained)
    assert torch.equal(two[0][0], two[1][0])
    assert torch.allclose(alone, two[0][0], atol=1e-5)
    assert torch.equal(encoder, two[1][1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"freeze": ("encodr",)}, "--freeze encodr: there is no such part; use encoder, memory, head, policy, value, statistics"),
        ({"freeze": ("policy", "value")}, "--freeze policy value leaves nothing to learn"),
        ({"freeze": ("memory",)}, "--freeze memory: this run has nothing of that kind"),
        ({"freeze": ("statistics",), "normalize_observations": False}, "--freeze statistics: this run has nothing of that kind"),
        ({"freeze": ("encoder",), "init_from": None}, "which are empty without --init-from"),
        ({"freeze": ("encoder",), "compute": "numpy"}, "none of --precision, --compile and --freeze"),
        (
            {"init_from": None, "init_checkpoint": "best"},
            "--init-checkpoint names a checkpoint of the run that --init-from names",
        ),
    ],
)
def test_what_can_not_be_frozen(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ProxRLError, match=message):
        parts_of(frozen_config(**changes))
