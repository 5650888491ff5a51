"""`--capture-video`: records an episode of the policy every few iterations, for the run folder and the loggers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from proxrl.common.numbers import format_number
from proxrl.common.seeding import Purpose, integer_seed
from proxrl.common.video import import_ffmpeg
from proxrl.config.resolve import EnvLike
from proxrl.envs.spaces import space_difference
from proxrl.errors import ProxRLError, describe
from proxrl.look.evaluation import do_nothing
from proxrl.look.recording import limit_steps, write_video
from proxrl.look.rendering import RenderedEnv, RenderedStep, open_rendered_env, rendered_steps
from proxrl.ppo import Parts
from proxrl.session import Session

# Training waits meanwhile, so a game that never ends must not be recorded to its end.
MAX_CAPTURE_STEPS = 5_000


@contextmanager
def capturer(env: EnvLike, parts: Parts) -> Iterator[Callable[[Session], None]]:
    """Yield a function that records an episode. Raises a ProxRLError if the environment can't be rendered, before the run begins.

    Actions are sampled, as in training. The environment and the seeds are separate from those of training, so capturing does not
    change the run.
    """
    config = parts.config
    if config.capture_video is None or parts.world.rank > 0:
        yield do_nothing
        return
    import_ffmpeg()
    rendered = open_rendered_env(config, env)

    def capture(session: Session) -> None:
        try:
            record_episode(rendered, parts, session)
        except Exception as error:  # a failed video must not end the run
            session.display.message(f"step {session.step:,}: no video: {describe(error)}")

    try:
        trained = parts.environments
        difference = space_difference(rendered.environments, trained.observation_space, trained.action_space)
        if difference:
            raise ProxRLError(f"--capture-video needs the spaces of training when rendering, but {difference}")
        yield capture
    finally:
        rendered.environments.close()


def record_episode(rendered: RenderedEnv, parts: Parts, session: Session) -> None:
    """Record one episode to `videos/step-N.mp4`, and pass it to the loggers that take videos."""
    path = session.folder.videos / f"step-{session.step}.mp4"
    seed = integer_seed(parts.config.seed, Purpose.EVALUATION, session.step)
    steps = rendered_steps(rendered, parts.compute, parts.policy, seed, deterministic=False)

    def until_stopped() -> Iterator[RenderedStep]:
        for step in limit_steps(steps, 1, MAX_CAPTURE_STEPS):
            yield step
            if session.stop_requested:
                return

    recording = write_video(rendered, until_stopped(), path, rendered.fps)
    score = (
        f"return {format_number(recording.returns[0])}" if recording.returns else f"cut off after {recording.frames - 1:,} steps"
    )
    session.display.message(f"step {session.step:,}: recorded {path}, {score}")
    for logger in session.loggers:
        log_video = getattr(logger, "log_video", None)
        if log_video is None:
            continue
        try:
            log_video(session.step, path)
        except Exception as error:  # the other loggers still get the video
            name = type(logger).__name__
            session.display.message(f"step {session.step:,}: {name} could not log the video: {describe(error)}")
