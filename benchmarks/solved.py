"""Steps and seconds until tasks are solved: the presets, the published values, and Stable-Baselines3 with the RL Zoo's values.

    python benchmarks/solved.py                                        # all tasks and sides, five seeds
    python benchmarks/solved.py CartPole-v1 Acrobot-v1 --sides preset sb3 --seeds 3
    python benchmarks/solved.py CartPole-v1 --sides preset --set epochs=10 --label ten-epochs
    python benchmarks/solved.py --table                                # print what has been measured so far

Finished runs are kept in a JSON file (--results), so that the measurement can be interrupted and continued: a run is repeated
only if its settings have changed since. A task is solved at the end of the first iteration at which the mean return of the last
episodes reaches its threshold: the last 100 training episodes, or the last 20 where an episode may last 500 steps or more.
Actions are sampled, as they are in training. It is kept if that mean is still there at the end of the run, within 5% of the
distance between a random policy and the threshold. Seconds are processor time (of all threads) from the start of training,
without the import of libraries. They are a little higher on a machine that does other things too; steps are always comparable.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src"
SIDES = ("preset", "reference", "sb3")
KEPT = 0.05  # how much of the distance between a random policy and the threshold may be lost at the end of a run


@dataclass(frozen=True)
class Task:
    """When a task counts as solved."""

    threshold: float
    random: float  # the mean return of uniformly random actions
    window: int = 100  # episodes
    capped_at: int | None = None  # runs that have not solved the task by then are ended


# The thresholds are Gymnasium's `reward_threshold` where training episodes can reach it. Others: Pendulum, CliffWalking and
# dm_control have none; Taxi's 8 is above what the best policy gets on average, and FrozenLake's 0.7, Reacher's -3.75,
# BipedalWalker's 300, Hopper's 3,800 and HalfCheetah's 4,800 are for a policy without exploration, or for longer runs.
TASKS = {
    "CartPole-v1": Task(475, 22, 20),
    "Acrobot-v1": Task(-100, -500, 20),
    "MountainCar-v0": Task(-110, -200),
    "MountainCarContinuous-v0": Task(90, -34, 20),
    "Pendulum-v1": Task(-200, -1181),
    "FrozenLake-v1": Task(0.65, 0.005),
    "CliffWalking-v1": Task(-20, -100, 20),  # random actions: about -90,000, of which 5% would be no criterion
    "Taxi-v4": Task(7, -728),
    "LunarLander-v3": Task(200, -210, 20),
    "LunarLanderContinuous-v3": Task(200, -255, 20),
    "BipedalWalker-v3": Task(250, -100, 20, 2_000_000),
    "InvertedPendulum-v5": Task(950, 5, 20),
    "InvertedDoublePendulum-v5": Task(9100, 52, 20),
    "Reacher-v5": Task(-6, -42),
    "Hopper-v5": Task(2000, 18, 20),
    "HalfCheetah-v5": Task(1500, -238, 20),
    "dm_control/cartpole-balance-v0": Task(950, 413, 20),
}

# The values of RL Baselines3 Zoo (hyperparams/ppo.yml) that differ from Stable-Baselines3's defaults.
_MUJOCO = {"normalize": True, "n_envs": 1, "n_timesteps": 1_000_000}
_WIDE = {"activation": "ReLU", "hidden": [256, 256], "log_std_init": -2, "ortho_init": False}
_LANDER = {
    "n_envs": 16,
    "n_timesteps": 1_000_000,
    "n_steps": 1024,
    "batch_size": 64,
    "gae_lambda": 0.98,
    "gamma": 0.999,
    "n_epochs": 4,
    "ent_coef": 0.01,
}
ZOO: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "n_envs": 8,
        "n_timesteps": 100_000,
        "n_steps": 32,
        "batch_size": 256,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "n_epochs": 20,
        "learning_rate": "lin_0.001",
        "clip_range": "lin_0.2",
    },
    "Acrobot-v1": {
        "normalize": True,
        "n_envs": 16,
        "n_timesteps": 1_000_000,
        "n_steps": 256,
        "gae_lambda": 0.94,
        "gamma": 0.99,
        "n_epochs": 4,
    },
    "MountainCar-v0": {
        "normalize": True,
        "n_envs": 16,
        "n_timesteps": 1_000_000,
        "n_steps": 16,
        "gae_lambda": 0.98,
        "gamma": 0.99,
        "n_epochs": 4,
    },
    "MountainCarContinuous-v0": {
        "normalize": True,
        "n_envs": 1,
        "n_timesteps": 20_000,
        "batch_size": 256,
        "n_steps": 8,
        "gamma": 0.9999,
        "learning_rate": 7.77e-5,
        "ent_coef": 0.00429,
        "clip_range": 0.1,
        "n_epochs": 10,
        "gae_lambda": 0.9,
        "max_grad_norm": 5,
        "vf_coef": 0.19,
        "use_sde": True,
        "log_std_init": -3.29,
        "ortho_init": False,
    },
    "Pendulum-v1": {
        "n_envs": 4,
        "n_timesteps": 100_000,
        "n_steps": 1024,
        "gamma": 0.9,
        "learning_rate": 1e-3,
        "use_sde": True,
        "sde_sample_freq": 4,
    },
    "LunarLander-v3": _LANDER,
    "LunarLanderContinuous-v3": _LANDER,
    "BipedalWalker-v3": {
        "normalize": True,
        "n_envs": 32,
        "n_timesteps": 5_000_000,
        "n_steps": 2048,
        "gamma": 0.999,
        "clip_range": 0.18,
    },
    "InvertedPendulum-v5": {
        **_MUJOCO,
        "batch_size": 64,
        "n_steps": 32,
        "gamma": 0.999,
        "learning_rate": 0.000222425,
        "ent_coef": 1.37976e-7,
        "clip_range": 0.4,
        "n_epochs": 5,
        "gae_lambda": 0.9,
        "max_grad_norm": 0.3,
        "vf_coef": 0.19816,
    },
    "InvertedDoublePendulum-v5": {
        **_MUJOCO,
        "batch_size": 512,
        "n_steps": 128,
        "gamma": 0.98,
        "learning_rate": 0.000155454,
        "ent_coef": 1.05057e-6,
        "clip_range": 0.4,
        "gae_lambda": 0.8,
        "vf_coef": 0.695929,
    },
    "Reacher-v5": {
        **_MUJOCO,
        "batch_size": 32,
        "n_steps": 512,
        "gamma": 0.9,
        "learning_rate": 0.000104019,
        "ent_coef": 7.52585e-8,
        "clip_range": 0.3,
        "n_epochs": 5,
        "gae_lambda": 1.0,
        "max_grad_norm": 0.9,
        "vf_coef": 0.950368,
    },
    "Hopper-v5": {
        **_MUJOCO,
        **_WIDE,
        "batch_size": 32,
        "n_steps": 512,
        "gamma": 0.999,
        "learning_rate": 9.80828e-5,
        "ent_coef": 0.00229519,
        "n_epochs": 5,
        "gae_lambda": 0.99,
        "max_grad_norm": 0.7,
        "vf_coef": 0.835671,
    },
    "HalfCheetah-v5": {
        **_MUJOCO,
        **_WIDE,
        "batch_size": 64,
        "n_steps": 512,
        "gamma": 0.98,
        "learning_rate": 2.0633e-5,
        "ent_coef": 0.000401762,
        "clip_range": 0.1,
        "n_epochs": 20,
        "gae_lambda": 0.92,
        "max_grad_norm": 0.8,
        "vf_coef": 0.58096,
    },
}


class Watch:
    """Follows the returns of one run, and notes when the task is solved."""

    def __init__(self, task: Task, until_solved: bool = False) -> None:
        self.task, self.until_solved = task, until_solved
        self.recent: list[float] = []
        self.solved: dict[str, float] | None = None
        self.lowest_after: float | None = None
        self.curve: list[tuple[int, float]] = []

    def begin(self) -> None:
        self.start, self.cpu_start = time.perf_counter(), time.process_time()

    def add(self, step: int, returns: list[float]) -> bool:
        """Take the returns of the last episodes at the end of an iteration; return whether the run should go on."""
        self.recent = returns[-self.task.window :]
        mean = self.mean
        if len(self.recent) == self.task.window:
            self.curve.append((step, mean))
            if self.solved is None and mean >= self.task.threshold:
                self.solved = {"step": step, **self.seconds()}
            if self.solved is not None:
                self.lowest_after = mean if self.lowest_after is None else min(mean, self.lowest_after)
        if self.solved is not None:
            return not self.until_solved
        return self.task.capped_at is None or step < self.task.capped_at

    @property
    def mean(self) -> float:
        return statistics.fmean(self.recent) if self.recent else float("nan")

    def seconds(self) -> dict[str, float]:
        seconds, cpu_seconds = time.perf_counter() - self.start, time.process_time() - self.cpu_start
        return {"seconds": round(seconds, 2), "cpu_seconds": round(cpu_seconds, 2)}

    def result(self, steps: int) -> dict[str, Any]:
        floor = self.task.threshold - KEPT * (self.task.threshold - self.task.random)
        every = max(1, len(self.curve) // 100)
        return {
            "solved": self.solved,
            "final": self.mean,
            "kept": None if self.until_solved else self.solved is not None and self.mean >= floor,
            "lowest_after": self.lowest_after,
            "steps": steps,
            **self.seconds(),
            "load": os.getloadavg()[0],
            "curve": [(step, round(mean, 2)) for step, mean in self.curve[::every]],
        }


def run_proxrl(env: str, watch: Watch, seed: int, preset: str | None, settings: dict[str, Any]) -> dict[str, Any]:
    """Train with ProxRL, and return what was seen."""
    import proxrl
    from proxrl.callback import Callback
    from proxrl.session import Session

    watch.begin()

    class Follow(Callback):
        step = 0

        def on_iteration(self, session: Session, metrics: dict[str, float]) -> None:
            self.step = session.step
            if not watch.add(session.step, [episode.total_reward for episode in session.recent]):
                session.stop_requested = True

    with tempfile.TemporaryDirectory() as folder:
        follow = Follow()
        proxrl.train(
            env, preset=preset, seed=seed, runs_dir=folder, quiet=True, tensorboard=False, callbacks=[follow], **settings
        )
    return watch.result(follow.step)


def run_sb3(env: str, watch: Watch, seed: int, zoo: dict[str, Any]) -> dict[str, Any]:
    """Train with Stable-Baselines3 and the RL Zoo's values, and return what was seen."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)  # the fastest for networks this small
    zoo = {name: _schedule(value) for name, value in zoo.items()}
    watch.begin()
    envs = make_vec_env(env, zoo.pop("n_envs"), seed=seed)
    if zoo.pop("normalize", False):
        envs = VecNormalize(envs, gamma=zoo.get("gamma", 0.99))
    network = {name: zoo.pop(name) for name in ("log_std_init", "ortho_init") if name in zoo}
    if "hidden" in zoo:
        network |= {"net_arch": zoo.pop("hidden"), "activation_fn": getattr(torch.nn, zoo.pop("activation"))}
    total_steps = zoo.pop("n_timesteps")

    class Follow(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.returns: deque[float] = deque(maxlen=100)
            self.go_on = True

        def _on_step(self) -> bool:
            self.returns.extend(info["episode"]["r"] for info in self.locals["infos"] if "episode" in info)
            return self.go_on

        def _on_rollout_start(self) -> None:  # after the update of the last rollout
            self.go_on = watch.add(self.num_timesteps, list(self.returns))

    model = PPO("MlpPolicy", envs, device="cpu", seed=seed, policy_kwargs=network, **zoo)
    follow = Follow()
    model.learn(total_steps, callback=follow)
    watch.add(model.num_timesteps, list(follow.returns))
    return watch.result(model.num_timesteps)


def _schedule(value: Any) -> Any:
    """Return a value of the Zoo as Stable-Baselines3 takes it: lin_X falls linearly from X to 0."""
    if not isinstance(value, str) or not value.startswith("lin_"):
        return value
    start = float(value.removeprefix("lin_"))
    return lambda remaining: remaining * start


def settings_of(env: str, side: str, changes: dict[str, Any]) -> dict[str, Any] | None:
    """Return the settings by which a result is recognized, or None if this side has none for the task."""
    if side == "sb3":
        return {**ZOO[env], **changes} if env in ZOO else None
    from proxrl.config.resolve import resolve
    from proxrl.errors import ProxRLError

    try:
        config = resolve(env, changes, "reference" if side == "reference" else None).config
    except ProxRLError as error:
        print(f"{env}, {side}: {error}", file=sys.stderr)
        return None
    # Without defaults, so that a setting that is new since a result was measured does not make it look outdated.
    names, default = [spec.name for spec in dataclasses.fields(config)], type(config)()
    changed = [name for name in names if getattr(config, name) != getattr(default, name)]
    return {name: str(getattr(config, name)) for name in changed}


def digest(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def is_known(result: dict[str, Any] | None, settings: str, until_solved: bool, max_steps: int | None) -> bool:
    """Return whether a result is of these settings, and was not stopped earlier than this measurement would stop."""
    if result is None or result["settings"] != settings:
        return False
    stopped_at = result.get("max_steps")
    if result["solved"] is None and stopped_at is not None and (max_steps is None or max_steps > stopped_at):
        return False
    return until_solved or result["kept"] is not None


def measure(env: str, side: str, seed: int, changes: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    """Return the result of one run in a fresh process."""
    command = [sys.executable, __file__, "--one", json.dumps([env, side, seed, changes, limits])]
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run_one(text: str) -> None:
    env, side, seed, changes, limits = json.loads(text)
    task = TASKS[env]
    watch = Watch(dataclasses.replace(task, capped_at=limits["max_steps"] or task.capped_at), limits["until_solved"])
    if side == "sb3":
        result = run_sb3(env, watch, seed, {**ZOO[env], **changes})
    else:
        result = run_proxrl(env, watch, seed, "reference" if side == "reference" else None, changes)
    print(json.dumps(result))


def table(results: dict[str, Any]) -> str:
    """Return a row for each task and side: median and worst steps and processor seconds to solved, and the returns at the end."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for key, result in sorted(results.items(), key=lambda item: int(item[0].rpartition("|")[2])):
        env, label, _ = key.split("|")
        rows.setdefault((env, label), []).append(result)
    lines = [
        "| task | solved at (episodes) | settings | solved | steps: median | worst | seconds: median | worst | kept | final |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (env, label), runs in sorted(rows.items(), key=lambda row: (list(TASKS).index(row[0][0]), row[0][1])):
        task = TASKS[env]
        solved = [run["solved"] for run in runs if run["solved"]]
        missing = [float("inf")] * (len(runs) - len(solved))
        steps = [mark["step"] for mark in solved] + missing
        seconds = [mark["cpu_seconds"] for mark in solved] + missing
        never = f"not in {max(run['steps'] for run in runs if not run['solved']):,}" if missing else ""
        marks = [
            never if number == float("inf") else format(number, form)
            for numbers, form in ((steps, ",.0f"), (seconds, ".1f"))
            for number in (statistics.median(numbers), max(numbers))
        ]
        # A run that ended when its task was solved says nothing about the return at the end.
        shown = [run["final"] for run in runs if run["kept"] is not None or not run["solved"]]
        final = [f"{mean:.0f}" if abs(mean) >= 1000 else f"{mean:.3g}" for mean in shown]
        lines.append(
            f"| {env} | {task.threshold:g} ({task.window}) | {label} | {len(solved)} of {len(runs)} | {' | '.join(marks)}"
            f" | {kept(runs)} | {', '.join(final)} |"
        )
    return "\n".join(lines)


def kept(runs: list[dict[str, Any]]) -> str:
    """Return how many of the runs that solved their task, and went on, had it solved at the end."""
    known = [run["kept"] for run in runs if run["kept"] is not None and run["solved"]]
    return f"{sum(known)} of {len(known)}" if known else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", choices=[*TASKS, []], metavar="TASK", help="default: all")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5], metavar="SEED")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings to change, for trying candidates")
    parser.add_argument("--label", help="name of these results in the table (default: the side)")
    parser.add_argument("--results", type=Path, default=Path("solved.json"), help="where results are kept (default: solved.json)")
    parser.add_argument("--until-solved", action="store_true", help="end each run when its task is solved; kept is unknown")
    parser.add_argument("--max-steps", type=int, metavar="N", help="end runs that have not solved their task after N steps")
    parser.add_argument("--table", action="store_true", help="print the results, without running anything")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run_one(options.one)
        return
    results: dict[str, Any] = json.loads(options.results.read_text()) if options.results.exists() else {}
    changes = dict(word.split("=", 1) for word in options.set)
    limits = {"until_solved": options.until_solved, "max_steps": options.max_steps}
    for env in () if options.table else options.tasks or TASKS:
        for side in options.sides:
            settings = settings_of(env, side, changes)
            for seed in options.seeds if settings else ():
                key, identity = f"{env}|{options.label or side}|{seed}", digest(settings)
                if is_known(results.get(key), identity, **limits):
                    continue
                result = {**measure(env, side, seed, changes, limits), "settings": identity, "changes": changes, **limits}
                results = json.loads(options.results.read_text()) if options.results.exists() else {}
                results[key] = result
                options.results.write_text(json.dumps(results, indent=1))
                shown = {
                    name: result[name] for name in ("solved", "final", "kept", "lowest_after", "steps", "seconds", "cpu_seconds")
                }
                print(key, shown, file=sys.stderr, flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
