"""`--capture-video`: now and then an episode of the policy as it is being trained, for the run folder and the loggers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from proxrl.build import Parts
from proxrl.common.seeding import Purpose, integer_seed
from proxrl.common.video import import_ffmpeg
from proxrl.config.resolve import EnvLike
from proxrl.envs.spaces import space_difference
from proxrl.errors import ProxRLError, describe
from proxrl.look.recording import film, until
from proxrl.look.rendering import Moment, Stage, moments, open_stage
from proxrl.session import Session

# Training waits meanwhile, so a game that never ends must not be filmed to its end.
LONGEST_CAPTURE = 5_000


@contextmanager
def capturer(env: EnvLike, parts: Parts) -> Iterator[Callable[[Session], None]]:
    """A function that records an episode; what can't be drawn is refused here, before the run begins. Actions are sampled, as in
    training. It has an environment of its own and seeds of its own, so the run goes on as if nobody had looked.
    """
    config = parts.config
    if config.capture_video is None or parts.world.rank > 0:
        yield lambda session: None  # noqa: ARG005 - the signature of what captures
        return
    import_ffmpeg()
    stage = open_stage(config, env)

    def capture(session: Session) -> None:
        try:
            record_episode(stage, session)
        except Exception as error:  # a video is not worth a run
            session.display.message(f"step {session.step:,}: no video: {describe(error)}")

    try:
        trained = parts.environments
        difference = space_difference(stage.environments, trained.observation_space, trained.action_space)
        if difference:
            raise ProxRLError(f"--capture-video needs the spaces of training when rendering, but {difference}")
        yield capture
    finally:
        stage.environments.close()


def record_episode(stage: Stage, session: Session) -> None:
    parts = session.parts
    path = session.folder.videos / f"step-{session.step}.mp4"
    seed = integer_seed(parts.config.seed, Purpose.EVALUATION, session.step)
    played = until(moments(stage, parts.compute, parts.policy, seed, deterministic=False), 1, LONGEST_CAPTURE)

    def unless_stopped() -> Iterator[Moment]:
        for moment in played:
            yield moment
            if session.stop_requested:
                return

    recording = film(stage, unless_stopped(), path, stage.fps)
    score = f"return {recording.returns[0]:.1f}" if recording.returns else f"cut off after {recording.frames - 1:,} steps"
    session.display.message(f"step {session.step:,}: recorded {path}, {score}")
    for logger in session.loggers:
        log_video = getattr(logger, "log_video", None)
        if log_video is None:
            continue
        try:
            log_video(session.step, path)
        except Exception as error:  # the others get it all the same
            whose = type(logger).__name__
            session.display.message(f"step {session.step:,}: the video was not logged by {whose}: {describe(error)}")
