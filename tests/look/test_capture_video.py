"""--capture-video: videos of the policy as it is trained, and a run that does not notice."""

from pathlib import Path
from typing import Any

import pytest

import proxrl
from commands import SMALL as COMMAND_SMALL
from commands import assert_same_checkpoint, metrics
from proxrl.common.video import PREVIEW_FRAMES, PREVIEW_WIDTH, VideoWriter, preview
from proxrl.errors import ProxRLError
from proxrl.log.tensorboard import TensorBoardLogger
from proxrl.look import capture
from ranks import run_ranks_by
from videos import SMALL, assert_moving_pictures, decode

pytest.importorskip("imageio_ffmpeg", reason="videos need imageio-ffmpeg")
RUN = {**SMALL, "total_steps": 80}  # five iterations


class Listener:
    """A logger that takes videos."""

    def __init__(self) -> None:
        self.videos: list[tuple[int, Path]] = []

    def log(self, step: int, metrics: dict[str, float]) -> None: ...

    def log_video(self, step: int, path: Path) -> None:
        assert path.exists()
        self.videos.append((step, path))

    def close(self) -> None: ...


class Deaf:
    """A logger that knows nothing of videos."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.steps.append(step)

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Listener, Deaf]:
    listener, deaf = Listener(), Deaf()
    folder = tmp_path_factory.mktemp("captured")
    result = proxrl.train("CartPole-v1", runs_dir=folder, quiet=True, loggers=[listener, deaf], capture_video=2, **RUN)
    return result.path, listener, deaf


def test_every_second_iteration_is_recorded(captured: tuple[Path, Listener, Deaf]) -> None:
    run, listener, deaf = captured
    videos = [(32, run / "videos/step-32.mp4"), (64, run / "videos/step-64.mp4")]
    assert sorted(run.glob("videos/*")) == [path for _, path in videos]
    assert listener.videos == videos
    assert deaf.steps == [16, 32, 48, 64, 80]
    for _, path in videos:
        frames = decode(path).frames
        assert frames.shape[1:] == (400, 600, 3)
        assert len(frames) > 5
        assert_moving_pictures(frames)


def test_tensorboard_shows_them_as_gifs(captured: tuple[Path, Listener, Deaf]) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    image = pytest.importorskip("PIL.Image")
    import io

    run = captured[0]
    events = accumulator.EventAccumulator(str(run), size_guidance={"images": 0})
    events.Reload()
    shown = events.Images("videos/episode")
    assert [event.step for event in shown] == [32, 64]
    for event in shown:
        with image.open(io.BytesIO(event.encoded_image_string)) as gif:
            assert gif.format == "GIF"
            assert gif.size == (event.width, event.height) == (PREVIEW_WIDTH, 160)
            assert gif.n_frames == len(decode(run / f"videos/step-{event.step}.mp4").frames)


@pytest.mark.parametrize("settings", [{}, {"compute": "autograd", "normalize_observations": True, "trunk": "shared"}])
def test_the_run_is_the_same_with_and_without(tmp_path: Path, settings: dict[str, Any]) -> None:
    def trained(name: str, **capture: Any) -> Path:
        words = {**RUN, **settings, **capture}
        return proxrl.train("CartPole-v1", runs_dir=tmp_path / name, quiet=True, tensorboard=False, **words).path

    with_videos, without = trained("with", capture_video=1), trained("without")
    assert len(list(with_videos.glob("videos/*.mp4"))) == 5
    assert_same_checkpoint(with_videos, without)
    assert metrics(with_videos) == metrics(without)


def test_capturing_may_begin_with_a_resume(tmp_path: Path) -> None:
    proxrl.train("CartPole-v1", runs_dir=tmp_path, quiet=True, tensorboard=False, **SMALL)
    result = proxrl.train("CartPole-v1", runs_dir=tmp_path, quiet=True, tensorboard=False, capture_video=3, **RUN)
    assert [path.name for path in result.path.glob("videos/*")] == ["step-48.mp4"]


def test_what_cannot_be_drawn_is_told_before_anything_is_lost(tmp_path: Path) -> None:
    words = {"runs_dir": tmp_path, "quiet": True, "tensorboard": False, **SMALL}
    run = proxrl.train("film_envs:Undrawn", **words).path
    before = (run / "checkpoints/latest.safetensors").read_bytes()
    with pytest.raises(ProxRLError, match="can't be drawn"):
        proxrl.train("film_envs:Undrawn", clobber=True, capture_video=1, **words)
    assert (run / "checkpoints/latest.safetensors").read_bytes() == before
    with pytest.raises(ProxRLError, match="--capture-video is 0"):
        proxrl.train("CartPole-v1", capture_video=0, **words)


def test_a_video_that_fails_later_does_not_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = proxrl.train("film_envs:Black", runs_dir=tmp_path, tensorboard=False, capture_video=1, **SMALL)
    assert result.finished
    assert "step 16: no video: every picture is of one colour" in capsys.readouterr().out
    assert list(result.path.glob("videos/*")) == []


class Failing(Listener):
    def log_video(self, step: int, path: Path) -> None:
        raise ValueError("no room left\nat all")


def test_a_logger_that_fails_does_not_keep_the_video_from_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listener = Listener()
    settings = {"runs_dir": tmp_path, "tensorboard": False, "capture_video": 1, **SMALL}
    result = proxrl.train("film_envs:Walk", loggers=[Failing(), listener], **settings)
    out = capsys.readouterr().out
    assert f"step 16: recorded {result.path / 'videos/step-16.mp4'}, return 5.0" in out
    assert "step 16: the video was not logged by Failing: ValueError: no room left" in out
    assert "no video" not in out
    assert listener.videos == [(16, result.path / "videos/step-16.mp4")]


def test_whatever_fails_in_a_capture_is_told_and_the_next_one_is_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = capture.film, []

    def film(*words: Any) -> Any:
        calls.append(words)
        if len(calls) == 1:
            raise MemoryError("pictures are too large")
        return whole(*words)

    monkeypatch.setattr(capture, "film", film)
    settings = {"runs_dir": tmp_path, "tensorboard": False, "capture_video": 1, **SMALL, "total_steps": 32}
    result = proxrl.train("film_envs:Walk", **settings)
    assert result.finished
    assert "step 16: no video: MemoryError: pictures are too large" in capsys.readouterr().out
    assert [path.name for path in result.path.glob("videos/*")] == ["step-32.mp4"]


def test_of_two_ranks_the_first_records(tmp_path: Path) -> None:
    words = ("train", "CartPole-v1", *COMMAND_SMALL, "--total-steps", "64", "--capture-video", "1", "--no-tensorboard")
    done = run_ranks_by("torchrun", 2, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs/CartPole-v1/ppo/seed1"
    assert sorted(path.name for path in run.glob("videos/*")) == ["step-32.mp4", "step-64.mp4"]
    assert [done.stdout.count(f"step {step}: recorded") for step in (32, 64)] == [1, 1]
    assert_moving_pictures(decode(run / "videos/step-64.mp4").frames)


def test_a_long_video_has_a_short_preview(tmp_path: Path) -> None:
    import numpy as np

    writer = VideoWriter(tmp_path / "long.mp4", 30)
    for place in range(2 * PREVIEW_FRAMES + 1):
        frame = np.zeros((64, 128, 3), np.uint8)
        frame[:, place % 128] = 255
        writer.add(frame)
    writer.close()
    gif, width, height = preview(tmp_path / "long.mp4")
    (tmp_path / "preview.gif").write_bytes(gif)
    assert (width, height) == (PREVIEW_WIDTH, 120)
    with pytest.importorskip("PIL.Image").open(tmp_path / "preview.gif") as film:
        assert PREVIEW_FRAMES / 2 < film.n_frames <= PREVIEW_FRAMES
    logger = TensorBoardLogger(tmp_path)
    logger.log_video(1, tmp_path / "long.mp4")
    logger.close()
