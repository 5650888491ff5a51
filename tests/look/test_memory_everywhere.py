"""Runs with a memory, for all kinds of spaces, networks and pools: training, evaluating, resuming, and acting by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import proxrl
from proxrl.build import build_environments
from proxrl.look.evaluation import run_episodes
from proxrl.policy.memory import RecurrentMemory
from recitals import Recital

SMALL: dict[str, Any] = {"num_envs": 2, "rollout_steps": 9, "num_minibatches": 2, "epochs": 2, "hidden_sizes": (8,)}
SMALL |= {"total_steps": 54, "memory": "lstm", "memory_size": 6, "learning_rate": 0.01, "vector": "inprocess", "quiet": True}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # arguments of the environment, and settings
    "separate": ({}, {"normalize_observations": True, "std": "state"}),
    "shared": ({"observation": "tuple", "action": "discrete"}, {"trunk": "shared", "memory": "gru", "memory_layers": 2}),
    "masks": ({"action": "discrete", "masks": True}, {"accumulate": 3, "sequence_length": 3, "target_kl": 0.1}),
    "image": ({"observation": "image", "action": "multidiscrete"}, {"memory": "gru", "sequence_length": 3}),
    "frames": ({"observation": "image", "action": "dict"}, {"frame_stack": 2}),
    "dict": ({"observation": "dict", "action": "dict"}, {"value_epochs": 2, "value_learning_rate": 0.002}),
    "keys": ({"observation": "dict"}, {"actor_keys": ("numbers", "kind"), "critic_keys": ("picture", "kind")}),
    "hard": ({"length": 9}, {"resets": "hard", "max_episode_steps": 6, "frame_stack": 3}),
    "learning": ({"action": "box"}, {"learning_starts": 20}),
}


@pytest.mark.parametrize("name", CASES)
def test_evaluation_acts_as_an_agent_does_by_hand(name: str, tmp_path: Path) -> None:
    """Both carry the memory through an episode and begin the next one without it."""
    kwargs, settings = CASES[name]
    run = proxrl.train("recitals:Recital", env_kwargs=kwargs, runs_dir=tmp_path, **SMALL | settings)
    assert run.step == 54
    agent = proxrl.load(run.path)
    assert isinstance(agent.policy.memory, RecurrentMemory)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in agent.policy.parameters():  # so that actions differ
            parameter += 0.4 * torch.randn(parameter.shape)
    pool = build_environments(agent.config, agent.config.env, 2)
    scores = run_episodes(pool, agent.compute, agent.policy, 3, 0, deterministic=True)
    env = Recital(**kwargs)
    returns = []
    for _ in range(3):
        agent.reset()
        obs, info = env.reset()
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, info = env.step(agent.act(obs, mask=info.get("action_mask")))
            total += reward
            over = terminated or truncated or env.time == agent.config.max_episode_steps
        returns.append(total)
    assert np.allclose(scores.returns, [*returns, *returns], atol=1e-3)
    assert len(set(returns)) > 1
