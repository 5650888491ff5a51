"""From settings to a finished run: join the other ranks, open the folder, build, train, close. Behind `proxrl.train` and the
command.
"""

import dataclasses
import functools
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxrl import ppo
from proxrl.build import Parts, arithmetic, build, build_environments, build_world, refuse_shared_gpus, uses_nccl
from proxrl.callback import Callback
from proxrl.common.seeding import Purpose, integer_seed
from proxrl.common.signals import stopping_signals
from proxrl.config import Config, flag
from proxrl.config.parse import toml_value
from proxrl.config.plugins import build_plugin
from proxrl.config.resolve import EnvLike, resolve
from proxrl.envs.api import Environments
from proxrl.errors import CollectiveError, ProxRLError, one_line
from proxrl.log.api import Logger
from proxrl.log.console import Console
from proxrl.log.jsonl import JsonlLogger
from proxrl.log.tensorboard import TensorBoardLogger
from proxrl.log.wandb import WandbLogger
from proxrl.look.capture import capturer
from proxrl.look.evaluation import equal_quota, run_episodes
from proxrl.policy.images import image_assumptions
from proxrl.runs.evaluations import Scores
from proxrl.runs.folder import RunFolder, earlier_config, run_folder
from proxrl.session import Saved, Session, attribute_errors, check_restorable
from proxrl.world.api import World, on_all_ranks
from proxrl.world.launcher import should_report


@dataclass(frozen=True)
class Result:
    """Where a run is and how it stands."""

    path: Path
    env: str
    step: int
    mean_return: float | None  # of the last episodes, 100 at most
    episodes: int  # how many they are
    best_return: float | None
    finished: bool
    signal: int | None  # what stopped it early, if anything did


def train(
    env: EnvLike | None = None,
    *,
    preset: str | None = None,
    runs_dir: str | Path = "runs",
    clobber: bool = False,
    quiet: bool = False,
    tensorboard: bool = True,
    wandb: bool = False,
    config: str | Path | None = None,
    envs_per_rank: int | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    **settings: Any,
) -> Result:
    """Train PPO on an environment, or resume the run that the same arguments began.

    `env` is a Gymnasium id, an EnvPool id, `module:callable`, or a callable that makes one environment; `settings` are the fields
    of `Config`. A callable is known by its name: give lambdas a `name` or a `seed` each, or they share a run folder. `config` is
    a file such as the config.toml of a run, to repeat it. Callbacks and loggers given as objects are not part of what is saved.
    Started by mpirun, srun or torchrun, all ranks train one run together: callbacks are called on all, loggers on the first.
    """
    file = None if config is None else Path(config)
    earlier = None if clobber else functools.partial(earlier_config, Path(runs_dir))
    resolved = resolve(env, settings, preset, earlier, file, envs_per_rank).config
    outputs = quiet, tensorboard, wandb
    try:
        result = run(env or resolved.env, resolved, Path(runs_dir), clobber, *outputs, callbacks, loggers, debug=True)
    except CollectiveError:
        raise  # on all ranks, so that a program may catch it and go on with the next run
    except ProxRLError as error:
        if resolved.world != "solo" and not should_report(error):
            raise SystemExit(2) from None
        raise
    if result.signal is not None and not result.finished:
        # It has only been held back until the run was saved: Ctrl-C ends the caller's loop over seeds too.
        signal.raise_signal(result.signal)
    return result


def run(
    env: EnvLike,
    config: Config,
    runs_dir: Path,
    clobber: bool,
    quiet: bool,
    tensorboard: bool,
    wandb: bool,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    debug: bool = False,
) -> Result:
    path = run_folder(runs_dir, config.env, config.name, config.seed)
    with ExitStack() as stack:
        stack.enter_context(arithmetic(config))
        world = build_world(config)
        stack.enter_context(ending_together(world, debug))
        config, clobber = agree_on_settings(world, config, clobber, path)
        quiet = quiet or world.rank > 0

        def prepare() -> tuple[Parts, list[Callback], Callable[[Session], None]]:
            """What every rank needs."""
            for logger in checked("loggers", loggers, LOGGER):
                stack.callback(close, logger)
            parts = build(config, env, world)
            stack.callback(parts.environments.close)
            own_callback = own_parts("callback", config.callback, config.callback_kwargs)
            capture = stack.enter_context(capturer(env, parts))
            return parts, [*checked("callbacks", callbacks, CALLBACK), *own_callback], capture

        def open_run() -> tuple[Saved | None, list[Logger]]:
            """What the first rank needs, which writes for all."""
            if world.rank > 0:
                return None, []
            own_logger = own_parts("logger", config.logger, config.logger_kwargs)
            for logger in own_logger:
                stack.callback(close, logger)
            stack.enter_context(folder)
            folder.create(config, clobber)
            saved = folder.load_latest()
            if saved is not None:
                check_restorable(parts, path, *saved)
            open_loggers: list[Logger] = [*loggers, *own_logger]
            for logger in make_loggers(folder, config, saved[1]["step"] if saved else None, quiet, tensorboard, wandb):
                open_loggers.append(logger)
                stack.callback(logger.close)
            return saved, open_loggers

        folder = RunFolder(path)
        # Built by all before the folder is touched: what can't be built must not cost an old run by --clobber.
        parts, callbacks, capture = on_all_ranks(world, prepare, debug)
        refuse_shared_gpus(world, parts.parameters.values.device, uses_nccl(config))
        saved, open_loggers = on_all_ranks(world, open_run, debug)
        stack.enter_context(arithmetic(config, parts.policy, world))
        start_step = saved[1]["step"] if saved else 0
        # mpirun gives its ranks a terminal even where its own output goes to a file.
        display = Console(config.planned_steps, start_step, quiet, live=world.kind != "mpi")
        stack.callback(display.close)
        evaluate = stack.enter_context(evaluator(env, parts))
        session = Session(parts, folder, open_loggers, display, evaluate, saved, callbacks, capture)
        message = "" if quiet else "stopping after this iteration"
        received = stack.enter_context(stopping_signals(message, session.request_stop, several_ranks=world.size > 1))
        display.start("\n".join([opening(config, path, start_step, world), *image_assumptions(parts.policy)]))
        if config.compile:
            display.message("torch compiles the networks as they are first used: the first iterations take a minute or more")
        try:
            session.write_status("running")
            ppo.train(parts, session)
            finished = session.step >= config.planned_steps
            session.save_latest("finished" if finished else "stopped")
        except BaseException:
            # The last good checkpoint stays as it is: what is in memory may be what went wrong.
            with suppress(ProxRLError):  # on a full disk this fails as well, and the first error is the one to tell
                session.write_status("failed")
            raise
        # What one rank was told has ended all, and so all pass it on.
        first_signal = next((number for numbers in world.gather(received) for number in numbers), None)
        result = Result(
            path,
            config.env,
            session.step,
            session.mean_return,
            len(session.recent),
            session.best_return,
            finished,
            first_signal,
        )
        display.finish(closing(result, config))
        return result


def agree_on_settings(world: World, config: Config, clobber: bool, path: Path) -> tuple[Config, bool]:
    """What the ranks must agree on before they begin; gives the settings, and whether an old run is to go."""
    settings = {spec.name: toml_value(getattr(config, spec.name)) for spec in dataclasses.fields(config)}
    for name in ("vector", "device", "device_ids", "threads"):  # a matter of what a host has
        settings.pop(name)
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    found = RunFolder(path).latest_checkpoint() is not None
    told = world.gather((settings, config.vector, restarts, found))
    everybodys, vectors, all_restarts, all_found = zip(*told, strict=True)
    for rank, theirs in enumerate(everybodys):
        odd = [name for name, value in everybodys[0].items() if theirs[name] != value]
        if odd:
            pair = f"{theirs[odd[0]]} on rank {rank}, but {everybodys[0][odd[0]]} on rank 0"
            raise CollectiveError(f"{flag(odd[0])} is {pair}: ranks train one run, so give all the same, or --world solo")
    clobber = clobber and max(all_restarts) == 0  # a restarted job repeats its words, but must not begin again
    if not clobber and any(all_found) and not all_found[0]:
        raise CollectiveError(
            f"rank {all_found.index(True)} finds a checkpoint in {path} and rank 0 does not; put --runs-dir on a disk that all"
            " hosts share, or delete it there"
        )
    return config.replace(vector=vectors[0]), clobber


@contextmanager
def ending_together(world: World, debug: bool) -> Iterator[None]:
    """What ends one of several ranks ends all, with its cause on one line: the others could only wait for it."""
    try:
        yield
    except CollectiveError:
        raise
    except BaseException as error:
        if world.size == 1:
            raise
        if debug:
            traceback.print_exc()
        text = str(error) if isinstance(error, ProxRLError) else one_line(error)
        print(f"proxrl: error: rank {world.rank}: {text}; the last checkpoint is as it was", file=sys.stderr, flush=True)
        world.abort(130 if isinstance(error, KeyboardInterrupt) else 2)
        raise  # an MPI may return from ending the others before it ends this one


def close(logger: Logger) -> None:
    with attribute_errors(logger, "close"):
        logger.close()


# What callbacks and loggers are asked for.
CALLBACK, LOGGER = ("on_rollout", "on_iteration"), ("log", "close")


def own_parts(name: str, text: str | None, kwargs: dict[str, Any]) -> list[Any]:
    """What --callback or --logger builds; none where there is none."""
    if text is None:
        return []
    made = build_plugin(name, text, (), kwargs)
    return checked(f"{flag(name)} {text}", [made], CALLBACK if name == "callback" else LOGGER)


def checked(source: str, parts: Any, methods: tuple[str, ...]) -> list[Any]:
    """The parts, if they are objects with these methods: found out before the run begins."""
    verb = "made" if source.startswith("--") else "holds"
    if not isinstance(parts, Sequence):
        raise ProxRLError(f"{source} is a {type(parts).__name__}, but must be a list of objects")
    for part in parts:
        if isinstance(part, type):
            raise ProxRLError(f"{source} {verb} the class {part.__name__}, not an object of it")
        missing = [method for method in methods if not callable(getattr(part, method, None))]
        if missing:
            raise ProxRLError(f"{source} {verb} a {type(part).__name__}, which lacks {' and '.join(missing)}")
    return list(parts)


def make_loggers(
    folder: RunFolder, config: Config, resume_step: int | None, quiet: bool, tensorboard: bool, wandb: bool
) -> Iterator[Logger]:
    yield JsonlLogger(folder.metrics_path, resume_step)
    if tensorboard:
        yield TensorBoardLogger(folder.path, resume_step)
    if wandb:
        yield WandbLogger(
            folder.path,
            {spec.name: getattr(config, spec.name) for spec in dataclasses.fields(config)},
            f"{config.env}-{config.name}-{config.seed}",
            quiet=quiet,
        )


def opening(config: Config, path: Path, start_step: int, world: World) -> str:
    rounded = f", {config.total_steps:,} asked for" if config.planned_steps != config.total_steps else ""
    ranks = "" if world.size == 1 else f"{world.size} ranks ({world.kind}) x "
    rollout = f"{config.num_envs // world.size} envs ({config.vector}) x {config.rollout_steps} steps"
    epochs = sum(phase.epochs for phase in config.phases(config.learning_starts))
    update = f"{epochs} epochs x {config.num_minibatches} minibatches of {config.minibatch_size:,}"
    # Dummy steps of next-step autoreset come on top, and may cost an iteration or two more.
    least = "at least " if config.vector in ("native", "envpool") else ""
    total = f"{config.planned_steps:,} steps ({least}{config.iterations:,} iterations{rounded})"
    lines = [
        f"Training {config.env} for {total}",
        f"Each: {ranks}{rollout} = a batch of {config.batch_size:,}, then {update} = {epochs * config.num_minibatches:,} updates",
        f"Run folder {path}",
    ]
    if start_step >= config.planned_steps:
        lines.append("Already done; a larger --total-steps goes on from here, --clobber starts over")
    elif start_step:
        lines.append(f"Resuming at step {start_step:,}; --clobber starts over")
    return "\n".join(lines)


def closing(result: Result, config: Config) -> str:
    score = "no episode has finished yet"
    if result.mean_return is not None:
        score = f"return {result.mean_return:.1f} over the last {result.episodes} episodes"
    if result.finished:
        path = shlex.quote(str(result.path))
        # What no other process can import can be evaluated from this program only.
        named = [str(getattr(config, spec.name)) for spec in dataclasses.fields(config)]
        nameless = "__main__" in result.env or "<" in result.env
        call = f"proxrl.evaluate({str(result.path)!r}{', env=...' if nameless else ''}) from Python"
        following = call if nameless or any(text.startswith("__main__:") for text in named) else f"proxrl eval {path}"
        return f"Done at step {result.step:,}: {score}. Next: {following}"
    return f"Stopped at step {result.step:,}: {score}. Saved in {result.path}; the same command resumes."


@contextmanager
def evaluator(env: EnvLike, parts: Parts) -> Iterator[Callable[[int], Scores]]:
    """A function that plays evaluation episodes, shared among the ranks; its environments are made at its first call and kept for
    the next.
    """
    config, world = parts.config, parts.world
    kept: list[Environments] = []
    num_envs = equal_quota(config.eval_episodes, config.num_envs)
    mine = range(num_envs * world.rank // world.size, num_envs * (world.rank + 1) // world.size)

    def evaluate(step: int) -> Scores:
        if not kept and mine:
            kept.append(build_environments(config, env, len(mine), mine.start, world))
        seed, quota = integer_seed(config.seed, Purpose.EVALUATION, step), config.eval_episodes // num_envs
        played = [
            run_episodes(environments, parts.compute, parts.policy, quota, seed, deterministic=True, first_env=mine.start)
            for environments in kept
        ]
        shares = [share for part in world.gather(played) for share in part]
        returns, lengths = (sum((getattr(share, name) for share in shares), ()) for name in ("returns", "lengths"))
        return Scores(returns, lengths)

    try:
        yield evaluate
    finally:
        for environments in kept:
            environments.close()
