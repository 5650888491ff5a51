"""--capture-video records the policy during training, and does not change the run."""

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
from videos import SMALL, assert_moving_frames, decode

pytest.importorskip("imageio_ffmpeg", reason="videos need imageio-ffmpeg")
RUN = {**SMALL, "total_steps": 80}  # five iterations


class VideoLogger:
    """A logger that takes videos."""

    def __init__(self) -> None:
        self.videos: list[tuple[int, Path]] = []

    def log(self, step: int, metrics: dict[str, float]) -> None: ...

    def log_video(self, step: int, path: Path) -> None:
        assert path.exists()
        self.videos.append((step, path))

    def close(self) -> None: ...


class PlainLogger:
    """A logger that takes no videos."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.steps.append(step)

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, VideoLogger, PlainLogger]:
    video_logger, plain_logger = VideoLogger(), PlainLogger()
    folder = tmp_path_factory.mktemp("captured")
    result = proxrl.train(
        "CartPole-v1", runs_dir=folder, quiet=True, loggers=[video_logger, plain_logger], capture_video=2, **RUN
    )
    return result.path, video_logger, plain_logger


def test_capture_video_2_records_every_second_iteration(captured: tuple[Path, VideoLogger, PlainLogger]) -> None:
    run, video_logger, plain_logger = captured
    videos = [(32, run / "videos/step-32.mp4"), (64, run / "videos/step-64.mp4")]
    assert sorted(run.glob("videos/*")) == [path for _, path in videos]
    assert video_logger.videos == videos
    assert plain_logger.steps == [16, 32, 48, 64, 80]
    for _, path in videos:
        frames = decode(path).frames
        assert frames.shape[1:] == (400, 600, 3)
        assert len(frames) > 5
        assert_moving_frames(frames)


def test_tensorboard_gets_the_videos_as_gifs(captured: tuple[Path, VideoLogger, PlainLogger]) -> None:
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
def test_capturing_does_not_change_the_run(tmp_path: Path, settings: dict[str, Any]) -> None:
    def trained(name: str, **capture: Any) -> Path:
        arguments = {**RUN, **settings, **capture}
        return proxrl.train("CartPole-v1", runs_dir=tmp_path / name, quiet=True, tensorboard=False, **arguments).path

    with_videos, without = trained("with", capture_video=1), trained("without")
    assert len(list(with_videos.glob("videos/*.mp4"))) == 5
    assert_same_checkpoint(with_videos, without)
    assert metrics(with_videos) == metrics(without)


def test_capturing_may_start_with_a_resume(tmp_path: Path) -> None:
    proxrl.train("CartPole-v1", runs_dir=tmp_path, quiet=True, tensorboard=False, **SMALL)
    result = proxrl.train("CartPole-v1", runs_dir=tmp_path, quiet=True, tensorboard=False, capture_video=3, **RUN)
    assert [path.name for path in result.path.glob("videos/*")] == ["step-48.mp4"]


def test_an_environment_that_cannot_be_rendered_is_refused_before_clobber_deletes_anything(tmp_path: Path) -> None:
    arguments = {"runs_dir": tmp_path, "quiet": True, "tensorboard": False, **SMALL}
    run = proxrl.train("render_envs:WithoutRenderMode", **arguments).path
    before = (run / "checkpoints/latest.safetensors").read_bytes()
    with pytest.raises(ProxRLError, match="can't be rendered"):
        proxrl.train("render_envs:WithoutRenderMode", clobber=True, capture_video=1, **arguments)
    assert (run / "checkpoints/latest.safetensors").read_bytes() == before
    with pytest.raises(ProxRLError, match="--capture-video is 0"):
        proxrl.train("CartPole-v1", capture_video=0, **arguments)


def test_a_video_that_fails_later_does_not_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = proxrl.train("render_envs:Black", runs_dir=tmp_path, tensorboard=False, capture_video=1, **SMALL)
    assert result.finished
    assert "step 16: no video: every frame has a single color" in capsys.readouterr().out
    assert list(result.path.glob("videos/*")) == []


class Failing(VideoLogger):
    def log_video(self, step: int, path: Path) -> None:
        raise ValueError("no room left\nat all")


def test_if_one_logger_fails_the_others_still_get_the_video(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video_logger = VideoLogger()
    settings = {"runs_dir": tmp_path, "tensorboard": False, "capture_video": 1, **SMALL}
    result = proxrl.train("render_envs:Walk", loggers=[Failing(), video_logger], **settings)
    out = capsys.readouterr().out
    assert f"step 16: recorded {result.path / 'videos/step-16.mp4'}, return 5.0" in out
    assert "step 16: Failing could not log the video: ValueError: no room left" in out
    assert "no video" not in out
    assert video_logger.videos == [(16, result.path / "videos/step-16.mp4")]


def test_any_error_in_a_capture_is_reported_and_the_next_capture_still_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = capture.write_video, []

    def write_video(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise MemoryError("frames are too large")
        return original(*arguments)

    monkeypatch.setattr(capture, "write_video", write_video)
    settings = {"runs_dir": tmp_path, "tensorboard": False, "capture_video": 1, **SMALL, "total_steps": 32}
    result = proxrl.train("render_envs:Walk", **settings)
    assert result.finished
    assert "step 16: no video: MemoryError: frames are too large" in capsys.readouterr().out
    assert [path.name for path in result.path.glob("videos/*")] == ["step-32.mp4"]


def test_rank_0_of_two_records(tmp_path: Path) -> None:
    arguments = ("train", "CartPole-v1", *COMMAND_SMALL, "--total-steps", "64", "--capture-video", "1", "--no-tensorboard")
    done = run_ranks_by("torchrun", 2, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs/CartPole-v1/ppo/seed1"
    assert sorted(path.name for path in run.glob("videos/*")) == ["step-32.mp4", "step-64.mp4"]
    assert [done.stdout.count(f"step {step}: recorded") for step in (32, 64)] == [1, 1]
    assert_moving_frames(decode(run / "videos/step-64.mp4").frames)


def test_a_long_video_has_a_short_preview(tmp_path: Path) -> None:
    import numpy as np

    writer = VideoWriter(tmp_path / "long.mp4", 30)
    for position in range(2 * PREVIEW_FRAMES + 1):
        frame = np.zeros((64, 128, 3), np.uint8)
        frame[:, position % 128] = 255
        writer.add(frame)
    writer.close()
    gif, width, height = preview(tmp_path / "long.mp4")
    (tmp_path / "preview.gif").write_bytes(gif)
    assert (width, height) == (PREVIEW_WIDTH, 120)
    with pytest.importorskip("PIL.Image").open(tmp_path / "preview.gif") as image:
        assert PREVIEW_FRAMES / 2 < image.n_frames <= PREVIEW_FRAMES
    logger = TensorBoardLogger(tmp_path)
    logger.log_video(1, tmp_path / "long.mp4")
    logger.close()
