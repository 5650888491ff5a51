"""Evaluation: the returns of complete episodes, with frozen statistics."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from proxrl.build import build_environments
from proxrl.collect.player import Player, draw_noise
from proxrl.common.seeding import Purpose, generator, integer_seed
from proxrl.config import Config
from proxrl.config.code import ENVIRONMENT_SETTINGS, holds_text, refusal
from proxrl.engine.api import Compute
from proxrl.engine.threads import arithmetic
from proxrl.envs.api import Environments
from proxrl.envs.given import INSTANCE, EnvSource, GivenEnv, as_maker, made_first
from proxrl.envs.registry import check_env
from proxrl.envs.spaces import space_difference
from proxrl.errors import ProxRLError, check_at_least
from proxrl.log.bar import episodes_bar
from proxrl.look.agent import Agent, load
from proxrl.look.eval_env import OWN_ENV, EvalEnv, check_fits
from proxrl.policy.policy import Policy
from proxrl.runs.evaluations import Scores, ScoresByKind, save_evaluation
from proxrl.runs.folder import RUNS_DIR, RunFolder
from proxrl.types import Episode, Step

# Noise is drawn ahead, for this many steps at a time.
NOISE_STEPS = 256
# An episode that lasts longer than this is assumed never to end, and so would its evaluation.
LONGEST_EPISODE = 200_000

# Called after every step with the number of episodes that it finished, and the number of its valid steps.
EpisodeWatcher: TypeAlias = Callable[[int, int], None]


def do_nothing(*_: object) -> None:
    """Take any arguments; the default of `watch`, here and in `proxrl.record`."""


def equal_quota(episodes: int, most_envs: int) -> int:
    """Return the largest number of environments, at most `most_envs`, that divides the number of episodes."""
    return max(n for n in range(1, min(episodes, most_envs) + 1) if episodes % n == 0)


def divided(episodes: int, num_envs: int) -> list[int]:
    """Return how many of the episodes each environment plays, as equally as possible."""
    return [episodes // num_envs + (env < episodes % num_envs) for env in range(num_envs)]


def act_steps(
    environments: Environments, compute: Compute, policy: Policy, seed: int, deterministic: bool, first_env: int = 0
) -> Iterator[Step]:
    """Act with the policy, one episode after the other, and yield every step."""
    player = Player(environments, compute, policy, first_env)
    streams = [generator(seed, Purpose.EVALUATION, first_env + env) for env in range(environments.num_envs)]
    noise = itertools.repeat(None) if deterministic else draw_noise(policy.head, streams, NOISE_STEPS)
    compute.freeze()
    player.begin(environments.reset(seed))
    last_ending = [0] * environments.num_envs
    for step_number in itertools.count(1):
        _, step = player.step(next(noise))
        for episode in step.episodes:
            last_ending[episode.env] = step_number
        if step_number - min(last_ending) > LONGEST_EPISODE:
            slow = last_ending.index(min(last_ending))
            raise ProxRLError(
                f"environment {first_env + slow} did not end an episode within {LONGEST_EPISODE:,} steps; give it a time limit"
            )
        yield step


def run_episodes(
    environments: Environments,
    compute: Compute,
    policy: Policy,
    quota: int | Sequence[int],
    seed: int,
    deterministic: bool,
    first_env: int = 0,
    watch: EpisodeWatcher = do_nothing,
) -> Scores:
    """Play `quota` episodes in every environment, or one of several quotas in each. `watch` is called after every step.

    Taking the episodes that finish first would favor short ones, which are bad in some tasks and good in others.
    """
    quotas = [quota] * environments.num_envs if isinstance(quota, int) else quota
    finished: list[list[Episode]] = [[] for _ in quotas]
    for step in act_steps(environments, compute, policy, seed, deterministic, first_env):
        counted = [episode for episode in step.episodes if len(finished[episode.env]) < quotas[episode.env]]
        for episode in counted:
            finished[episode.env].append(episode)
        watch(len(counted), int(step.valid.sum()))
        if all(len(done) == enough for done, enough in zip(finished, quotas, strict=True)):
            break
    episodes = [episode for done in finished for episode in done]
    return Scores(
        tuple(episode.total_reward for episode in episodes),
        tuple(episode.length for episode in episodes),
        tuple(episode.success for episode in episodes if episode.success is not None),
    )


def evaluate_agent(
    agent: Agent,
    eval_env: EvalEnv,
    episodes: int,
    seed: int,
    deterministic: bool,
    watch: EpisodeWatcher = do_nothing,
) -> Scores:
    """Play episodes of an agent in environments of its run, or in others, divided equally among them."""
    config = eval_env.config(agent.config)
    environments = build_evaluation(config, eval_env.env or config.env, episodes)
    try:
        check_fits(environments, agent, eval_env.label(agent.config))
        with arithmetic(config, agent.policy):
            quotas = divided(episodes, environments.num_envs)
            return run_episodes(environments, agent.compute, agent.policy, quotas, seed, deterministic, watch=watch)
    finally:
        environments.close()


def build_evaluation(config: Config, env: str | Callable[..., Any], episodes: int) -> Environments:
    """Build environments to evaluate in. A callable or instance that is given may be of another kind than those of training."""
    num_envs = equal_quota(episodes, most_envs=max(config.num_envs, 8))
    made = None if isinstance(env, str) or config.vector == "workers" else made_first(env, config.env_kwargs, num_envs)
    if made is None:
        return build_environments(config, env, num_envs)
    vector: Any = "native" if made.vectorized else "inprocess"
    return build_environments(config.replace(vector=vector), made, 1 if isinstance(made, GivenEnv) else num_envs)


def check_agent_spaces(environments: Environments, agent: Agent) -> None:
    """Raise a `ProxRLError` if the agent's policy does not fit the environments."""
    difference = space_difference(environments, agent.observation_space, agent.action_space)
    if difference:
        raise ProxRLError(difference)


def evaluate(
    run: str | Path | Agent,
    *,
    episodes: int = 20,
    seed: int | None = None,
    checkpoint: str = "latest",
    env: EnvSource | None = None,
    env_kwargs: dict[str, Any] | None = None,
    device: str | None = None,
    runs_dir: str | Path = RUNS_DIR,
    trust: bool = False,
    watch: EpisodeWatcher = do_nothing,
) -> ScoresByKind:
    """Return the deterministic and stochastic scores of a run.

    `env` is another environment than the run's, as `train` takes it, or the callable or instance with which the run was trained.
    `env_kwargs` are its arguments; without `env`, they change those of the run. `trust` allows a run that somebody else has made
    to import the code that its settings name. `watch` is called after every step.
    """
    check_request(episodes, seed)
    agent = run if isinstance(run, Agent) else load(run, checkpoint, device, runs_dir, trust)
    maker = env_of(agent, env, "evaluate", env_kwargs)
    if seed is None:
        seed = integer_seed(agent.config.seed, Purpose.EVALUATION)
    eval_env = EvalEnv(None if env is None else maker, env_kwargs)
    return ScoresByKind(
        (name, evaluate_agent(agent, eval_env, episodes, seed, deterministic, watch))
        for name, deterministic in (("deterministic", True), ("stochastic", False))
    )


def env_of(agent: Agent, given: Any, call: str, kwargs: dict[str, Any] | None = None) -> Any:
    """Return the environment to play in: the one given, or that of the run's settings.

    Raises a ProxRLError if it can't be found, or if its code is somebody else's and not trusted. For a Python callable, the
    message names `call`, the function that takes it. `kwargs` are arguments that are used instead of the run's.
    """
    # The run's own environment by name has the run's arguments; another one, or a callable, is the user's choice. But a callable
    # gets the run's arguments too, and may pass text among them on to what imports or opens it.
    own = given is None or given == agent.config.env
    needed = ENVIRONMENT_SETTINGS - (frozenset() if own else {"env"})
    if not own and not (callable(given) and kwargs is None and holds_text(agent.config.env_kwargs)):
        needed -= {"env_kwargs"}
    untrusted = {name: value for name, value in agent.untrusted.items() if name in needed}
    if untrusted:
        raise refusal("this run", untrusted)
    if given is not None:
        return as_maker(given)
    env = agent.config.env
    if env.endswith(INSTANCE):
        raise ProxRLError(
            f"{env.removesuffix(INSTANCE)} was given as an instance, which can't be made again from a name;"
            f" use proxrl.{call}(run, env=...) with an instance or a callable that makes it"
        )
    try:
        check_env(env, agent.config.vector)
    except ProxRLError as error:
        hint = f"; for a Python callable, use proxrl.{call}(run, env=callable)" if ":" in env else ""
        raise ProxRLError(f"{error}{hint}") from error
    return env


def check_request(episodes: int | None, seed: int | None) -> None:
    check_at_least("--episodes", episodes, 1)
    check_at_least("--seed", seed, 0)


def evaluate_and_save(
    folder: RunFolder,
    agent: Agent,
    episodes: int = 20,
    seed: int | None = None,
    checkpoint: str = "latest",
    eval_env: EvalEnv = OWN_ENV,
) -> ScoresByKind:
    """Evaluate the agent of a checkpoint, and save the scores in the run folder, where reports and model cards find them.

    Scores in another environment than the run's are saved under its name.
    """
    if seed is None:
        seed = integer_seed(agent.config.seed, Purpose.EVALUATION)
    with episodes_bar(f"Evaluating {folder.path}", 2 * episodes) as watch:
        env, env_kwargs = eval_env
        scores = evaluate(agent, episodes=episodes, seed=seed, env=env, env_kwargs=env_kwargs, watch=watch)
    name = checkpoint if eval_env.is_own else f"{checkpoint} in {eval_env.label(agent.config)}"
    with contextlib.suppress(ProxRLError):  # the folder may belong to another user
        save_evaluation(folder, name, agent.step, seed, {kind: score.summary() for kind, score in scores.items()})
    return scores
