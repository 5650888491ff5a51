"""Video files, written frame by frame: an episode of 27,000 frames never lies in memory."""

import subprocess
from collections.abc import Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from proxrl.envs.filmed import Frame
from proxrl.errors import ProxRLError

# Small pictures, such as those of games, are enlarged by whole pixels until their short side has this many.
SHORT_SIDE = 320
# Players know no GIF that is faster.
FASTEST_GIF = 50.0
# Colours of each frame's own; those of the whole film would have to wait for its end.
PALETTE = "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1"
# Of the GIF that TensorBoard gets: it keeps all of them in one file.
PREVIEW_FRAMES, PREVIEW_WIDTH = 200, 240


def import_ffmpeg() -> ModuleType:
    try:
        import imageio_ffmpeg
    except ImportError:
        raise ProxRLError("videos need the video extra: pip install 'proxrl[video]'") from None
    try:
        imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError as error:
        raise ProxRLError("no ffmpeg was found: pip install 'proxrl[video]', or set IMAGEIO_FFMPEG_EXE to its path") from error
    module: ModuleType = imageio_ffmpeg
    return module


def enlarged(frame: Frame) -> Frame:
    """By whole pixels, if it is small; and with an even number of them each way, since mp4 shares colours between two."""
    factor = max(1, -(-SHORT_SIDE // min(frame.shape[:2])))
    frame = frame.repeat(factor, axis=0).repeat(factor, axis=1)
    return np.pad(frame, ((0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)), mode="edge")


class VideoWriter:
    """An mp4 that browsers play, or a GIF."""

    def __init__(self, path: Path, fps: float, gif: bool = False) -> None:
        self._ffmpeg = import_ffmpeg()
        self._path, self._fps, self._gif = path, min(fps, FASTEST_GIF) if gif else fps, gif
        self._shape: tuple[int, ...] | None = None
        self._sink: Generator[None, Any, None] | None = None
        self.frames = 0
        self.blank = True  # as long as every frame was all of one colour

    def add(self, frame: Frame) -> None:
        self.blank = self.blank and bool((frame == frame[0, 0]).all())
        if self._sink is None:
            self._shape = frame.shape
        if frame.shape != self._shape:
            raise ProxRLError(f"the pictures changed their size, from {self._shape} to {frame.shape}; a video has one size")
        picture = np.ascontiguousarray(enlarged(frame))
        try:
            if self._sink is None:
                self._sink = self._open(picture.shape[1], picture.shape[0])
            self._sink.send(picture)
        except OSError as error:
            raise self._failure(error) from error
        self.frames += 1

    def close(self) -> None:
        """Finish the file."""
        sink, self._sink = self._sink, None
        try:
            if sink is not None:
                sink.close()
        except OSError as error:
            raise self._failure(error) from error

    def _open(self, width: int, height: int) -> Generator[None, Any, None]:
        # The container is named because a temporary file's name does not end in it.
        form = ["-f", "gif", "-filter_complex", PALETTE] if self._gif else ["-f", "mp4", "-movflags", "+faststart"]
        sink: Generator[None, Any, None] = self._ffmpeg.write_frames(
            str(self._path),
            (width, height),
            fps=self._fps,
            codec="gif" if self._gif else "libx264",
            pix_fmt_out="pal8" if self._gif else "yuv420p",
            quality=None if self._gif else 7,
            macro_block_size=1,
            ffmpeg_log_level="error",
            output_params=form,
        )
        sink.send(None)
        return sink

    def _failure(self, error: OSError) -> ProxRLError:
        told = [line for line in str(error).splitlines() if line.strip()]
        return ProxRLError(f"ffmpeg can't write {self._path.parent}: {told[-1].strip() if told else 'it stopped'}")


def preview(path: Path) -> tuple[bytes, int, int]:
    """A short, small GIF of a video, and its width and height."""
    ffmpeg = import_ffmpeg()
    frames, _ = ffmpeg.count_frames_and_secs(str(path))
    every = -(-frames // PREVIEW_FRAMES)
    scene = f"select=not(mod(n\\,{every})),scale='min({PREVIEW_WIDTH},iw)':-2:flags=area,"
    words = [ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-i", str(path), "-filter_complex", scene + PALETTE]
    made = subprocess.run([*words, "-fps_mode", "vfr", "-f", "gif", "-"], capture_output=True)
    if made.returncode:
        raise ProxRLError(f"ffmpeg can't make a GIF of {path}: {made.stderr.decode(errors='replace').strip()[-200:]}")
    width, height = (int.from_bytes(made.stdout[start : start + 2], "little") for start in (6, 8))
    return made.stdout, width, height
