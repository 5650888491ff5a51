"""What a run needs, what the process can use, and flags that have no effect."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from proxrl.common import memory as usable
from proxrl.common.memory import Memory, in_words, usable_memory
from proxrl.config import Config
from proxrl.engine import memory
from proxrl.engine.memory import estimate_memory, memory_warning, refuse_too_large
from proxrl.errors import ProxRLError
from proxrl.policy.make_head import unused_settings


def pool(observation: spaces.Space, frame_stack: int = 1) -> Any:
    return SimpleNamespace(observation_space=observation, action_space=spaces.Discrete(2), frame_stack=frame_stack)


def test_rollouts_and_networks_are_counted() -> None:
    config = Config(num_envs=8, rollout_steps=100, vector="inprocess", hidden_sizes=(1000, 1000), num_minibatches=4)
    need = estimate_memory(config, 4, pool(spaces.Box(-1, 1, (10,), np.float32)))
    # Observations as stored and as floats, the action, and the other columns of a step.
    assert need.rollout - 2 * 100 * 2000 * 4 * 2 == 4 * 100 * (10 * 4 + 10 * 4 + 8 + memory.STEP_BYTES)
    assert need.networks == 2 * (11 * 1000 + 1001 * 1000) * 4 * 5
    frames = estimate_memory(config.replace(encoder="nature"), 4, pool(spaces.Box(0, 255, (4, 84, 84), np.uint8), 4))
    assert (frames.rollout, frames.networks) == (4 * 100 * (84 * 84 + 8 + memory.STEP_BYTES), 0)


def test_too_large_is_refused_and_large_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(num_envs=4, rollout_steps=2**20, vector="inprocess", num_minibatches=2**18)
    boxes = pool(spaces.Box(-1, 1, (32,), np.float32))
    need = estimate_memory(config, 4, boxes).total
    monkeypatch.setattr(memory, "usable_memory", lambda: Memory(need - 1, need - 1))
    with pytest.raises(ProxRLError, match=r"--num-envs 4 x --rollout-steps 1,048,576 needs at least 1\.\d GiB of memory, but"):
        refuse_too_large(config, 4, 1, boxes)
    refuse_too_large(config, 4, 1)  # observations are not known yet
    monkeypatch.setattr(memory, "usable_memory", lambda: Memory(need, need))
    refuse_too_large(config, 4, 1, boxes)
    (line,) = memory_warning(config, 4, 1, boxes)
    assert line.startswith("warning: --num-envs 4 x --rollout-steps 1,048,576 needs at least 1.")
    with pytest.raises(ProxRLError, match="for 2 ranks"):
        refuse_too_large(config, 4, 2, boxes)
    monkeypatch.setattr(memory, "usable_memory", lambda: Memory(2 * need, 2 * need))
    assert memory_warning(config, 4, 1, boxes) == []
    monkeypatch.setattr(memory, "usable_memory", lambda: None)
    refuse_too_large(config, 4, 10**6, boxes)


def test_states_of_a_memory_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"memory_size": 32, "memory_layers": 2, "memory_window": 10**6, "memory_heads": 4}
    config = Config(num_envs=8, rollout_steps=100, num_minibatches=4, sequence_length=25, vector="inprocess", **sizes)
    assert estimate_memory(config, 4).states == 0
    assert estimate_memory(config.replace(memory="lstm"), 4).states == 4 * 5 * 2 * 2 * 32 * 4 * 2 + 2 * 4 * 32**2 * 20
    config = config.replace(memory="transformer")
    need = estimate_memory(config, 4)
    assert need.states == 4 * 5 * 2 * 10**6 * 32 * 4 * 2 + 2 * 21 * 32**2 * 20
    monkeypatch.setattr(memory, "usable_memory", lambda: Memory(need.total - 1, need.total - 1))
    size = "--memory-size 32 x --memory-window 1,000,000 for 4 sequences of each of --num-envs 8 needs at least 9.5 GiB"
    with pytest.raises(ProxRLError, match=rf"{size} .*; use a smaller memory, longer sequences or fewer environments"):
        refuse_too_large(config, 4, 1)


def test_limits_of_containers_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info, own, group = tmp_path / "meminfo", tmp_path / "own", tmp_path / "cgroup/jobs/7"
    info.write_text("MemTotal: 1000 kB\nMemAvailable: 600 kB\nSwapTotal: 24 kB\nSwapFree: 4 kB\n")
    own.write_text("0::/jobs/7\n")
    group.mkdir(parents=True)
    monkeypatch.setattr(usable, "MEMORY_INFO", info)
    monkeypatch.setattr(usable, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(usable, "OWN_CGROUP", own)
    assert usable_memory() == Memory(1024 * 1024, 604 * 1024)
    for folder, limit in ((group, "max"), (group.parent, "500000")):
        (folder / "memory.max").write_text(limit)
        (folder / "memory.current").write_text("100000")
    assert usable_memory() == Memory(500_000, 400_000)
    own.write_text("4:cpu:/x\n5:memory,pids:/old\n")
    (tmp_path / "cgroup/memory/old").mkdir(parents=True)
    (tmp_path / "cgroup/memory/old/memory.limit_in_bytes").write_text("300000")
    (tmp_path / "cgroup/memory/old/memory.usage_in_bytes").write_text("400000")
    assert usable_memory() == Memory(300_000, 0)


def test_sizes_in_words() -> None:
    assert [in_words(size) for size in (900, 1536, 200 * 2**20, 3 * 2**40)] == ["900 bytes", "1.5 KiB", "200 MiB", "3.0 TiB"]


def test_flags_of_continuous_actions_beside_discrete_ones() -> None:
    config = Config(std="state", log_std_init=-1.0)
    lines = unused_settings(spaces.Dict(a=spaces.Discrete(2), b=spaces.MultiBinary(2)), config)
    assert [line[:31] for line in lines] == ["warning: --std state has no eff", "warning: --log-std-init -1.0 ha"]
    assert unused_settings(spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (1,))]), config) == []
    assert unused_settings(spaces.Discrete(2), Config()) == []


@pytest.mark.parametrize(
    ("unused", "used", "reason"),
    [
        ({"icm_coef": 0.1}, {"bonus": ("icm",)}, "without --bonus icm"),
        ({"rnd_coef": 1.0}, {"bonus": ("icm", "rnd", "episodic=true")}, "without --bonus rnd"),
        ({"rnd_gamma": 0.9}, {"bonus": ("rnd",)}, "without --bonus rnd"),
        ({"memory_size": 64}, {"memory": "gru"}, "without --memory lstm, gru or transformer"),
        ({"memory_layers": 2}, {"memory": "transformer"}, "without --memory lstm, gru or transformer"),
        ({"sequence_length": 16}, {"memory": "lstm"}, "without --memory lstm, gru or transformer"),
        ({"memory_heads": 2}, {"memory": "transformer"}, "without --memory transformer"),
        ({"memory": "lstm", "memory_window": 8}, {"memory": "transformer"}, "without --memory transformer"),
        ({"noise_interval": 4}, {"noise": "gsde"}, "without --noise gsde"),
        ({"action_distribution": "beta", "log_std_init": 1}, {"action_distribution": "tanh"}, "with --action-distribution beta"),
        ({"clip_observations": 5.0}, {"normalize_observations": True}, "without --normalize-observations"),
        ({"momentum": 0.5}, {"value_optimizer": "sgd"}, "without --optimizer sgd"),
        ({"optimizer": "sgd", "adam_epsilon": 1e-8}, {"optimizer": "rmsprop"}, "with --optimizer sgd"),
        ({"eval_episodes": 3}, {"eval_every": 1000}, "without --eval-every"),
        ({"plateau_tolerance": 0.5}, {"stop_plateau": 1000}, "without --stop-plateau"),
    ],
)
def test_flags_of_parts_that_a_run_does_not_have(unused: dict[str, Any], used: dict[str, Any], reason: str) -> None:
    name, value = list(unused.items())[-1]
    box = spaces.Box(-1, 1, (1,))
    lines = unused_settings(box, Config(**unused).validate())
    assert lines == [f"warning: --{name.replace('_', '-')} {value} has no effect {reason}"]
    assert unused_settings(box, Config(**unused | used).validate()) == []


def test_a_flag_that_lacks_two_things_is_named_once() -> None:
    (line,) = unused_settings(spaces.Discrete(2), Config(noise_interval=4))
    assert line == "warning: --noise-interval 4 has no effect because the actions of CartPole-v1 are not continuous: Discrete(2)"
