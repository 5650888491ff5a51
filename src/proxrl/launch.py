"""From settings to a finished run: connect to the other ranks, build, open the folder, train, close. Behind `proxrl.train` and
`proxrl train`.
"""

import dataclasses
import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from proxrl import ppo
from proxrl.build import build, build_environments, build_world, refuse_shared_gpus, trainee, uses_nccl
from proxrl.callback import Callback, check_hooks
from proxrl.check.preflight import warnings_about
from proxrl.common.seeding import Purpose, integer_seed
from proxrl.common.signals import is_interactive, stopping_signals
from proxrl.config import Config, flag
from proxrl.config.parse import toml_value
from proxrl.config.plugins import build_plugin
from proxrl.config.resolve import EnvLike, resolve
from proxrl.config.settings import Settings, check_keywords, with_settings
from proxrl.engine.compilation import reporting_compilation
from proxrl.engine.memory import memory_warning
from proxrl.engine.threads import arithmetic
from proxrl.envs.api import Environments
from proxrl.envs.given import EnvSource, as_maker, resume_notes, second_maker
from proxrl.errors import CollectiveError, ProxRLError, attribute_errors, describe
from proxrl.log.api import Logger
from proxrl.log.console import Console
from proxrl.log.health import Health
from proxrl.log.jsonl import JsonlLogger
from proxrl.log.tensorboard import TensorBoardLogger
from proxrl.log.ticker import ticking
from proxrl.log.wandb import WandbLogger
from proxrl.look.capture import capturer
from proxrl.look.eval_env import EvalEnv, check_fits
from proxrl.look.evaluation import divided, equal_quota, run_episodes
from proxrl.policy.image_encoders import image_assumptions
from proxrl.policy.make_head import unused_settings
from proxrl.ppo import Parts
from proxrl.run_texts import Result, closing, opening
from proxrl.runs.changes import check_allowed
from proxrl.runs.evaluations import Scores
from proxrl.runs.folder import RunFolder, earlier_config, run_folder
from proxrl.runs.metrics import MEAN_RETURN, RETURN, read_lines
from proxrl.runs.origin import code_warnings, load_origin, read_origin, start_from
from proxrl.runs.status import sudden_end
from proxrl.session import Observers, Saved, Session, check_restorable
from proxrl.world.api import World, on_all_ranks
from proxrl.world.launcher import should_report


@dataclass(frozen=True)
class RunOptions:
    """What a run writes and who watches it; none of this is recorded."""

    runs_dir: Path
    clobber: bool = False
    quiet: bool = False
    tensorboard: bool = True
    wandb: bool = False
    debug: bool = False
    callbacks: Sequence[Callback] = ()
    loggers: Sequence[Logger] = ()
    allow_change: Collection[str] = ()  # settings that may differ from those of the run that is resumed
    cores: int | None = None  # how many the run uses at most, if others train beside it; None: all
    eval_env: Any = None  # what --eval-env names, if it was given as a callable or an instance


@with_settings
def train(
    env: EnvSource | Config | None = None,
    *,
    preset: str | None = None,
    runs_dir: str | Path = "runs",
    clobber: bool = False,
    quiet: bool = False,
    tensorboard: bool = True,
    wandb: bool = False,
    config: str | Path | Config | None = None,
    envs_per_rank: int | None = None,
    trust: bool = False,
    allow_change: Collection[str] = (),
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    **settings: Unpack[Settings],
) -> Result:
    """Train PPO on an environment, or resume the run that the same arguments began.

    `env` is a Gymnasium id, an EnvPool id, `module:callable`, a callable that makes one environment or a `VectorEnv`, or an
    instance of either (docs/environments.md says what instances can't do); `eval_env` may be any of these too. `settings` are
    fields of `Config`. A callable is identified by its name, so give each lambda a `name` or `seed` of its own, or they share a
    run folder. `config` is a file such as the config.toml of a run, which repeats that run, or a `Config`, which may also be
    given as the only argument. A `Config` has all settings, so no preset is used; keywords override it. A file of somebody else
    that names code needs `trust`. Callbacks and loggers given as objects are not recorded. Started by mpirun, srun or torchrun,
    all ranks train one run together: callbacks are called on every rank, loggers on rank 0. Settings in `allow_change` may differ
    from those of a resumed run.

    Ctrl-C saves the run, and is then raised as usual, so that it also ends a loop over seeds; in an interactive session (a Python
    prompt, IPython, a notebook) the result of the unfinished run is returned instead.
    """
    check_keywords(settings, train)
    allowed = check_allowed(allow_change)
    if isinstance(env, Config):
        if config is not None:
            raise ProxRLError("two configs are given; give one of them, and keywords for what differs from it")
        env, config = None, env
    file = Path(config) if isinstance(config, str) else config
    earlier = None if clobber else functools.partial(earlier_config, Path(runs_dir))
    resolved = resolve(env, settings, preset, earlier, file, envs_per_rank, look=True, trust=trust)
    options = RunOptions(
        *(Path(runs_dir), clobber, quiet, tensorboard, wandb, True, callbacks, loggers, allowed),
        eval_env=settings.get("eval_env"),
    )
    try:
        result = run(resolved.env, resolved.config, options)
    except CollectiveError:
        raise  # on all ranks, so that a program may catch it and go on with the next run
    except ProxRLError as error:
        if resolved.config.world != "solo" and not should_report(error):
            raise SystemExit(2) from None
        raise
    if result.signal is not None and not result.finished and not (result.signal == signal.SIGINT and is_interactive()):
        # The signal was only held back until the run was saved: Ctrl-C also ends the caller's loop over seeds.
        signal.raise_signal(result.signal)
    return result


def run(env: EnvLike, config: Config, options: RunOptions) -> Result:
    """Train with these settings, from the start or from the run's last checkpoint."""
    with ExitStack() as stack:
        stack.enter_context(arithmetic(config))
        world = build_world(config, options.cores)
        stack.enter_context(ending_together(world, options.debug))
        config, options = agree_on_settings(world, config, options)
        # All ranks build before the folder is touched: what can't be built must not cost an old run by --clobber.
        parts, callbacks, capture, evaluate = on_all_ranks(
            world, lambda: build_all(stack, env, config, options, world), options.debug
        )
        refuse_shared_gpus(world, parts.parameters.values.device, uses_nccl(config))
        folder = RunFolder(run_folder(options.runs_dir, config.env, config.name, config.seed))
        saved, loggers = on_all_ranks(world, lambda: open_folder(stack, folder, parts, options), options.debug)
        stack.enter_context(arithmetic(config, parts.policy, world, parts.compute.shards.count))
        display = open_display(stack, parts, options, folder, saved)
        observers = Observers(loggers, display, evaluate, callbacks, capture)
        session = Session(config, world, trainee(parts), folder, observers, saved)
        message = "" if options.quiet else "stopping after this iteration"
        signals = stack.enter_context(stopping_signals(message, session.request_stop, world.size > 1, display.notice))
        notes = [
            *earlier_end(folder, world),
            *beginning(folder, session),
            *remarks(parts),
            *resume_notes(env, session.step),
            *map(str, folder.changed),
        ]
        display.start("\n".join([opening(config, folder.path, session.step, world, session.finished_by), *notes]))
        train_and_save(parts, session, env, look=saved is None and not options.quiet)
        result = conclude(session, signals)
        display.finish(closing(result, config, display))
        return result


def build_all(
    stack: ExitStack, env: EnvLike, config: Config, options: RunOptions, world: World
) -> tuple[Parts, list[Callback], Callable[[Session], None], Callable[[int], Scores]]:
    """Build what every rank needs: the parts, the callbacks, what captures videos, and what evaluates. `stack` closes them."""
    for logger in check_methods("loggers", options.loggers, LOGGER):
        stack.callback(close, logger)
    parts = build(config, env, world)
    stack.callback(parts.environments.close)
    callbacks = plugins("callback", config.callback, config.callback_kwargs)
    capture = stack.enter_context(capturer(second_maker(env), parts))
    evaluate = stack.enter_context(evaluator(second_maker(env), parts, options.eval_env))
    return parts, [*check_callbacks("callbacks", options.callbacks), *callbacks], capture, evaluate


def open_folder(stack: ExitStack, folder: RunFolder, parts: Parts, options: RunOptions) -> tuple[Saved | None, list[Logger]]:
    """Lock the run folder, read the checkpoint to resume from, and open the loggers: on rank 0, which writes for all."""
    if parts.world.rank > 0:
        return None, []
    config = parts.config
    loggers = [*options.loggers]
    for logger in plugins("logger", config.logger, config.logger_kwargs):
        stack.callback(close, logger)
        loggers.append(logger)
    trained = trainee(parts)
    resumes = not options.clobber and folder.latest_checkpoint() is not None
    loaded = None if resumes else load_origin(config, folder, options.runs_dir, trained, trained.tensors())
    stack.enter_context(folder)
    folder.create(config, options.clobber, options.allow_change)
    saved = folder.load_latest()
    if saved is None:
        start_from(loaded, folder, trained.tensors())
    else:
        check_restorable(trained, folder, saved)
    for logger in make_loggers(folder, config, saved[1]["step"] if saved else None, options):
        stack.callback(logger.close)
        loggers.append(logger)
    return saved, loggers


def open_display(stack: ExitStack, parts: Parts, options: RunOptions, folder: RunFolder, saved: Saved | None) -> Console:
    config, health = parts.config, Health(parts.config, parts.environments.action_space)
    display = Console(
        config.planned_steps,
        saved[1]["step"] if saved else 0,
        options.quiet,
        live=parts.world.kind != "mpi",  # mpirun gives its ranks a terminal even if its own output goes to a file
        activity=parts.activity,
        health=health,
    )
    stack.callback(display.close)
    if not options.quiet:
        earlier = read_lines(folder) if saved else ()
        returns = ((line["step"], line.get(MEAN_RETURN, line.get(RETURN))) for line in earlier)  # earlier versions lack the mean
        display.recall((step, value) for step, value in returns if value is not None)
        stack.enter_context(ticking(display.tick, display.seconds_between_ticks))
    return display


def earlier_end(folder: RunFolder, world: World) -> list[str]:
    """Return a line if an earlier session ended without writing its status; this one has not written its own yet."""
    status = folder.read_status() if world.rank == 0 else {}
    if status.get("state") != "running":
        return []
    return [f"The session before {sudden_end(int(status.get('step') or 0))}"]


def beginning(folder: RunFolder, session: Session) -> list[str]:
    """Return a line if the run starts now, with the weights of another, and warnings about networks of other code there."""
    origin = read_origin(folder) if session.step == 0 and session.world.rank == 0 else None
    if origin is None:
        return []
    return [f"Starting with the weights and statistics of {origin}", *code_warnings(session.config, origin)]


def remarks(parts: Parts) -> list[str]:
    """Return what the user may want to know about these settings: assumptions, flags without effect, scarce memory."""
    return [
        *image_assumptions(parts.policy),
        *unused_settings(parts.environments.action_space, parts.config),
        *memory_warning(parts.config, parts.environments.num_envs, parts.world.local_size, parts.environments),
    ]


def train_and_save(parts: Parts, session: Session, env: EnvLike, look: bool) -> None:
    """Train, and save at the end. With `look`, first tell what is wrong with the environment."""
    if parts.config.compile:
        session.display.message(
            "torch compiles the networks when they are first used: the first iterations take a minute or more"
        )
    try:
        session.write_status("running")
        if look:  # after the status, which tells later that this session was there if the environment ends the process
            for line in warnings_about(parts.environments, env, parts.config.env, parts.config.env_kwargs):
                session.display.message(line)
        parts.collector.watchers += session.step_watchers()
        session.call_on_start()
        with reporting_compilation(parts.config.compile, parts.activity):
            ppo.train(parts, session)
        session.save_latest("finished" if is_finished(session) else "stopped")
    except BaseException:
        # The last good checkpoint stays as it is, because what is in memory may be what went wrong.
        with suppress(ProxRLError):  # on a full disk this fails too, and the first error is the one to report
            session.write_status("failed")
        session.state = "failed"
        with suppress(Exception):  # again, the first error is the one to report
            session.call_on_end()
        raise
    session.call_on_end()


def is_finished(session: Session) -> bool:
    return session.step >= session.config.planned_steps or session.finished_by is not None


def conclude(session: Session, signals: Sequence[int]) -> Result:
    # A signal to one rank has ended all, so all pass it on.
    first_signal = next((number for numbers in session.world.gather(list(signals)) for number in numbers), None)
    return Result(
        path=session.folder.path,
        env=session.config.env,
        step=session.step,
        mean_return=session.mean_return,
        episodes=len(session.recent),
        best_return=session.best_return,
        finished=is_finished(session),
        signal=first_signal,
        success_rate=session.success_rate,
        finished_by=session.finished_by,
    )


def agree_on_settings(world: World, config: Config, options: RunOptions) -> tuple[Config, RunOptions]:
    """Check that all ranks have the same settings; return them as all ranks use them. Rank 0 alone prints."""
    settings = {spec.name: toml_value(getattr(config, spec.name)) for spec in dataclasses.fields(config)}
    for name in ("vector", "device", "device_ids", "threads"):  # these depend on the host
        settings.pop(name)
    path = run_folder(options.runs_dir, config.env, config.name, config.seed)
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    has_checkpoint = RunFolder(path).latest_checkpoint() is not None
    all_settings, vectors, all_restarts, found = zip(
        *world.gather((settings, config.vector, restarts, has_checkpoint)), strict=True
    )
    for rank, theirs in enumerate(all_settings):
        different = [name for name, value in all_settings[0].items() if theirs[name] != value]
        if different:
            name = different[0]
            pair = f"{theirs[name]} on rank {rank}, but {all_settings[0][name]} on rank 0"
            raise CollectiveError(f"{flag(name)} is {pair}: ranks train one run, so give all the same, or --world solo")
    clobber = options.clobber and max(all_restarts) == 0  # a restarted job repeats its flags, but must not start over
    if not clobber and any(found) and not found[0]:
        raise CollectiveError(
            f"rank {found.index(True)} finds a checkpoint in {path} and rank 0 does not; put --runs-dir on a disk that all"
            " hosts share, or delete it there"
        )
    return config.replace(vector=vectors[0]), dataclasses.replace(options, clobber=clobber, quiet=options.quiet or world.rank > 0)


@contextmanager
def ending_together(world: World, debug: bool) -> Iterator[None]:
    """End all ranks when one fails, with its error on one line: the others could only wait for it."""
    try:
        yield
    except CollectiveError:
        raise
    except BaseException as error:
        if world.size == 1:
            raise
        if debug:
            traceback.print_exc()
        message = f"proxrl: error: rank {world.rank}: {describe(error)}; no checkpoint was damaged"
        print(message, file=sys.stderr, flush=True)
        world.abort(130 if isinstance(error, KeyboardInterrupt) else 2)
        raise  # an MPI library may return from ending the others before it ends this rank


def close(logger: Logger) -> None:
    with attribute_errors(logger, "close"):
        logger.close()


# The methods that loggers must have.
LOGGER = ("log", "close")


def plugins(name: str, target: str | None, kwargs: dict[str, Any]) -> list[Any]:
    """Build what --callback or --logger names."""
    if target is None:
        return []
    plugin, source = build_plugin(name, target, (), kwargs), f"{flag(name)} {target}"
    return check_callbacks(source, [plugin]) if name == "callback" else check_methods(source, [plugin], LOGGER)


def check_callbacks(source: str, callbacks: Any) -> list[Any]:
    """Return the callbacks, or raise an error before the run begins if one has no method that would be called."""
    for callback in check_methods(source, callbacks, ()):
        check_hooks(callback, f"{source} {'returned' if source.startswith('--') else 'holds'}")
    return list(callbacks)


def check_methods(source: str, parts: Any, methods: tuple[str, ...]) -> list[Any]:
    """Return the parts if they are objects with these methods; otherwise raise an error before the run begins."""
    verb = "returned" if source.startswith("--") else "holds"
    if not isinstance(parts, Sequence):
        raise ProxRLError(f"{source} is a {type(parts).__name__}, but must be a list of objects")
    for part in parts:
        if isinstance(part, type):
            raise ProxRLError(f"{source} {verb} the class {part.__name__}, not an object of it")
        missing = [method for method in methods if not callable(getattr(part, method, None))]
        if missing:
            raise ProxRLError(f"{source} {verb} a {type(part).__name__}, which lacks {' and '.join(missing)}")
    return list(parts)


def make_loggers(folder: RunFolder, config: Config, resume_step: int | None, options: RunOptions) -> Iterator[Logger]:
    settings = {spec.name: getattr(config, spec.name) for spec in dataclasses.fields(config)}
    yield JsonlLogger(folder.metrics_path, resume_step)
    if options.tensorboard:
        yield TensorBoardLogger(folder.path, resume_step, settings)
    if options.wandb:
        yield WandbLogger(
            folder.path,
            settings,
            f"{config.env}-{config.name}-{config.seed}",
            quiet=options.quiet,
        )


@contextmanager
def evaluator(env: EnvLike, parts: Parts, eval_env: Any = None) -> Iterator[Callable[[int], Scores]]:
    """Yield a function that plays evaluation episodes, divided among the ranks. Its environments are built at its first call and
    kept for the next. Those of --eval-env are built at once, because the policy may not fit them.
    """
    config, world = parts.config, parts.world
    named = eval_env is None or isinstance(eval_env, str)
    other = EvalEnv(config.eval_env if named else as_maker(eval_env), config.eval_env_kwargs)
    eval_config = other.config(config)
    kept: list[Environments] = []
    num_envs = equal_quota(config.eval_episodes, config.num_envs)
    mine = range(num_envs * world.rank // world.size, num_envs * (world.rank + 1) // world.size)

    def build_kept() -> None:
        if not kept and mine:
            with other.naming_its_flag(config):
                kept.append(build_environments(eval_config, other.env or env, len(mine), mine.start, world))

    def evaluate(step: int) -> Scores:
        seed = integer_seed(config.seed, Purpose.EVALUATION, step)
        episodes = len(mine) * config.eval_episodes // num_envs
        parts.activity.begin("evaluating", episodes)
        build_kept()
        played = [
            run_episodes(
                pool, parts.compute, parts.policy, divided(episodes, pool.num_envs), seed, True, mine.start, parts.activity.add
            )
            for pool in kept
        ]
        scores = [score for rank_scores in world.gather(played) for score in rank_scores]
        columns = zip(*((score.returns, score.lengths, score.successes) for score in scores), strict=True)
        return Scores(*(sum(column, ()) for column in columns))

    try:
        if not other.is_own:
            build_kept()
        for environments in kept:
            check_fits(environments, parts.environments, other.label(config))
        yield evaluate
    finally:
        for environments in kept:
            environments.close()
