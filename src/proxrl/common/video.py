"""Video files, written frame by frame: an episode of 27,000 frames never lies in memory."""

import contextlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from proxrl.errors import ProxRLError

Frame = NDArray[np.uint8]  # [height, width, 3]

# Small pictures, such as those of games, are enlarged by whole pixels until their short side has this many.
SHORT_SIDE = 320
# Unless the long side would become longer than this.
LONG_SIDE = 1920
# Players know no GIF that is faster.
FASTEST_GIF = 50.0
# Colours of each frame's own; those of the whole film would have to wait for its end.
PALETTE = "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1"
# The containers are named because a temporary file's name does not end in them.
GIF = ("-vcodec", "gif", "-pix_fmt", "pal8", "-filter_complex", PALETTE, "-f", "gif")
MP4 = ("-vcodec", "libx264", "-pix_fmt", "yuv420p", "-crf", "15", "-f", "mp4", "-movflags", "+faststart")
# Of the GIF that TensorBoard gets: it keeps all of them in one file.
PREVIEW_FRAMES, PREVIEW_WIDTH = 200, 240
# For an ffmpeg that takes no more frames to say why.
LAST_WORDS_SECONDS = 5.0


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
    short, long = sorted(frame.shape[:2])
    factor = max(1, min(-(-SHORT_SIDE // short), LONG_SIDE // long))
    frame = frame.repeat(factor, axis=0).repeat(factor, axis=1)
    return np.pad(frame, ((0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)), mode="edge")


class VideoWriter:
    """An mp4 that browsers play, or a GIF. As a context it is finished at the end, and given up after an error.

    `name` is the file in error messages, where `path` is a temporary one.
    """

    def __init__(self, path: Path, fps: float, gif: bool = False, name: Path | None = None) -> None:
        self._program = import_ffmpeg().get_ffmpeg_exe()
        self._path, self._fps, self._gif, self._name = path, min(fps, FASTEST_GIF) if gif else fps, gif, name or path
        self._shape: tuple[int, ...] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self.frames = 0
        self.blank = True  # as long as every frame was all of one colour

    def __enter__(self) -> "VideoWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close() if kind is None else self.abandon()

    def add(self, frame: Frame) -> None:
        self.blank = self.blank and bool((frame == frame[0, 0]).all())
        if self._shape is None:
            self._shape = frame.shape
        if frame.shape != self._shape:
            raise ProxRLError(f"the pictures changed their size, from {self._shape} to {frame.shape}; a video has one size")
        picture = np.ascontiguousarray(enlarged(frame))
        if self._process is None:
            self._open(picture.shape[1], picture.shape[0])
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(picture.data)
        except OSError as error:  # it has closed its end
            raise self._failure(LAST_WORDS_SECONDS) from error
        self.frames += 1

    def close(self) -> None:
        """Finish the file; one that ffmpeg could not finish is an error."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        try:
            with contextlib.suppress(OSError):  # it did not take all; its exit code tells
                self._process.stdin.close()
            if self._process.wait():
                raise self._failure()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End ffmpeg, if it still runs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # what it was never given
                process.stdin.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _open(self, width: int, height: int) -> None:
        source = [
            "-f",
            "rawvideo",
            "-vcodec",
            "rawvideo",
            "-s",
            f"{width}x{height}",
            "-pix_fmt",
            "rgb24",
            "-r",
            f"{self._fps:.6f}",
        ]
        words = [
            self._program,
            "-y",
            "-loglevel",
            "error",
            *source,
            "-i",
            "-",
            "-an",
            *(GIF if self._gif else MP4),
            str(self._path),
        ]
        # A file, since nobody reads a pipe while frames are written.
        self._errors = tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._errors, **_out_of_reach()
            )
        except OSError as error:
            self.abandon()
            raise ProxRLError(f"ffmpeg can't be started: {self._program}: {error.strerror}") from error

    def _failure(self, patience: float = 0) -> ProxRLError:
        """What ffmpeg says, which is ended."""
        assert self._process is not None
        assert self._errors is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        self._errors.seek(0)
        told = _reason(self._errors.read())
        self.abandon()
        return ProxRLError(f"ffmpeg can't write {self._name}: {told}")


def _out_of_reach() -> dict[str, Any]:
    """Ctrl-C goes to all that a terminal runs; ffmpeg is to end when this process has decided what becomes of the file."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def _reason(errors: bytes) -> str:
    """The first line, without the parts of ffmpeg that say so; later ones tell what followed from it."""
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
    return re.sub(r"^(\[[^]]*\]\s*)+", "", lines[0]) if lines else "it stopped and did not say why"


def preview(path: Path) -> tuple[bytes, int, int]:
    """A short, small GIF of a video, and its width and height."""
    every = max(1, -(-count_frames(path) // PREVIEW_FRAMES))
    scene = f"select=not(mod(n\\,{every})),scale='min({PREVIEW_WIDTH},iw)':-2:flags=area,"
    gif = _read(path, "-filter_complex", scene + PALETTE, "-f", "gif", "-")
    width, height = (int.from_bytes(gif[start : start + 2], "little") for start in (6, 8))
    return gif, width, height


def count_frames(path: Path) -> int:
    """Without decoding them: a line for each, after those that begin with a #."""
    lines = _read(path, "-map", "0:v:0", "-c", "copy", "-f", "framecrc", "-").splitlines()
    return sum(not line.startswith(b"#") for line in lines)


def _read(path: Path, *words: str) -> bytes:
    """What ffmpeg makes of a video. It gets no standard input: it would read the terminal's, or what the caller was given."""
    program = import_ffmpeg().get_ffmpeg_exe()
    try:
        made = subprocess.run(
            [program, "-loglevel", "error", "-i", str(path), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            **_out_of_reach(),
        )
    except OSError as error:
        raise ProxRLError(f"ffmpeg can't be started: {program}: {error.strerror}") from error
    output: bytes = made.stdout
    if made.returncode:
        raise ProxRLError(f"ffmpeg can't read {path}: {_reason(made.stderr)}")
    return output
