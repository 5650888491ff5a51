"""Custom networks, callbacks, loggers and an environment, in a module that the command line can import."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from proxrl.callback import Callback


class TwoRooms(gymnasium.Env):
    """The actor sees a noisy hint; the critic also sees a secret that determines the reward of the whole episode."""

    observation_space = spaces.Dict(
        hint=spaces.Box(-1, 1, (2,), np.float32), secret=spaces.Box(-1, 1, (3,), np.float32), room=spaces.Discrete(2)
    )
    action_space = spaces.Discrete(2)

    def observe(self) -> dict[str, Any]:
        hint = np.array([self.sign, self.np_random.normal(0, 0.1)], np.float32).clip(-1, 1)
        return {"hint": hint, "secret": np.full(3, self.gain, np.float32), "room": self.time % 2}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.time, self.sign, self.gain = 0, float(self.np_random.choice([-1, 1])), float(self.np_random.uniform(-1, 1))
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        reward = self.gain + (1.0 if (action == 1) == (self.sign > 0) else 0.0)
        self.time += 1
        self.sign = float(self.np_random.choice([-1, 1]))
        return self.observe(), reward, False, self.time == 8, {}


class Encoder(nn.Module):
    def __init__(self, observation_space: gymnasium.Space, width: int = 12) -> None:
        super().__init__()
        self.layer = nn.Linear(spaces.flatdim(observation_space), width)

    def forward(self, obs: Any) -> Tensor:
        leaves = list(obs.values()) if isinstance(obs, dict) else [obs]
        return torch.relu(self.layer(torch.cat([leaf.flatten(1) for leaf in leaves], 1)))


def make_encoder(observation_space: gymnasium.Space, width: int = 12) -> nn.Module:
    return Encoder(observation_space, width)


def make_frozen(observation_space: gymnasium.Space) -> nn.Module:
    return Encoder(observation_space).requires_grad_(False)


def make_policy(observation_space: gymnasium.Space, action_space: Any, width: int = 12) -> nn.Module:
    return nn.Sequential(Encoder(observation_space, width), nn.Linear(width, int(action_space.n)))


def make_value(observation_space: gymnasium.Space, width: int = 12, flat: bool = False) -> nn.Module:
    tail = [nn.Flatten(0)] if flat else []
    return nn.Sequential(Encoder(observation_space, width), nn.Linear(width, 1), *tail)


def make_wrong_size(observation_space: gymnasium.Space, *_: Any) -> nn.Module:
    return Encoder(observation_space, 7)


def make_nothing(*_: Any) -> None:
    return None


def make_failure(*_: Any, **__: Any) -> None:
    raise RuntimeError("no such layer\nand more")


class Faulty(Encoder):
    """A network with one fault."""

    def __init__(self, observation_space: gymnasium.Space, fault: str = "flat") -> None:
        super().__init__(observation_space, 1)
        self.fault = fault

    def forward(self, obs: Any) -> Tensor:
        if self.fault == "write":
            obs["hint"].div_(2)
        output = super().forward(obs)
        return {"flat": output.squeeze(-1), "squeeze": output.squeeze(), "double": output.double(), "write": output}[self.fault]


class Deaf(nn.Module):
    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(99, 2)

    def forward(self, obs: Any) -> Tensor:
        return self.layer(obs)


class Doubling(Callback):
    """Doubles the rewards of each rollout, records its calls, and stops after `stop` iterations."""

    def __init__(self, factor: float = 2.0, path: str = "", stop: int = 0) -> None:
        self.factor, self.path, self.stop = factor, path, stop
        self.calls: list[str] = []

    def on_rollout(self, session: Any, rollout: Any) -> None:
        self.calls.append(f"rollout {session.iteration}")
        rollout.reward *= self.factor

    def on_iteration(self, session: Any, metrics: dict[str, float]) -> None:
        self.calls.append(f"iteration {session.iteration}")
        metrics["mine/rewards"] = 7.0 + session.iteration
        if self.path:
            Path(self.path).write_text("\n".join(self.calls))
        if self.stop and session.iteration >= self.stop:
            session.stop_requested = True


class Breaking(Callback):
    def __init__(self, how: str = "key") -> None:
        self.how = how

    def on_iteration(self, session: Any, metrics: dict[str, Any]) -> None:
        metrics["mine"] = "abc"

    def on_rollout(self, session: Any, rollout: Any) -> None:
        if self.how == "metric":
            return
        if self.how == "key":
            raise KeyError("oops")
        rollout.reward[3] = np.nan


def bad_schedule(step: int) -> float:
    return 0.1 * step


class Lines:
    """A logger that writes a text file."""

    def __init__(self, path: str = "lines.txt") -> None:
        self.file = open(path, "w")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.file.write(f"{step} {metrics['losses/value_loss']}\n")

    def close(self) -> None:
        self.file.write("closed\n")
        self.file.close()


class Unreadable(Encoder):
    """Branches on a tensor's value in Python, which a graph can't represent."""

    def forward(self, obs: Any) -> Tensor:
        return super().forward(obs) * (2 if float(obs.sum()) > 0 else 1)


class Counting(Encoder):
    """Calls len() on a tensor."""

    def forward(self, obs: Any) -> Tensor:
        return super().forward(obs.reshape(len(obs), -1))
