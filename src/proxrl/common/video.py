"""Video files, written frame by frame, since an episode of 27,000 frames does not fit in memory."""

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

# Small frames, such as those of games, are enlarged by a whole factor until their short side has this many pixels.
SHORT_SIDE = 320
# The long side is not enlarged beyond this.
LONG_SIDE = 1920
# Players do not show GIFs faster than this.
MAX_GIF_FPS = 50.0
# One palette per frame: a palette of the whole video would be known only at its end.
PALETTE = "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1"
# The container is given explicitly, because the name of a temporary file does not end in it.
GIF = ("-vcodec", "gif", "-pix_fmt", "pal8", "-filter_complex", PALETTE, "-f", "gif")
MP4 = ("-vcodec", "libx264", "-pix_fmt", "yuv420p", "-crf", "15", "-f", "mp4", "-movflags", "+faststart")
# Size of the GIF for TensorBoard, which stores all of them in one file.
PREVIEW_FRAMES, PREVIEW_WIDTH = 200, 240
# How long to wait for the error message of an ffmpeg that accepts no more frames.
ERROR_SECONDS = 5.0


def import_ffmpeg() -> ModuleType:
    """Import imageio_ffmpeg. Raises a ProxRLError if it or ffmpeg itself is missing."""
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
    """Enlarge a small frame by a whole factor, and pad it to an even size, since mp4 stores one color for each 2 x 2 pixels."""
    short, long = sorted(frame.shape[:2])
    factor = max(1, min(-(-SHORT_SIDE // short), LONG_SIDE // long))
    frame = frame.repeat(factor, axis=0).repeat(factor, axis=1)
    return np.pad(frame, ((0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)), mode="edge")


class VideoWriter:
    """Writes an mp4 that browsers play, or a GIF. As a context manager, it finishes the file, or stops ffmpeg after an error.

    `name` is the file to name in error messages, if `path` is a temporary file.
    """

    def __init__(self, path: Path, fps: float, gif: bool = False, name: Path | None = None) -> None:
        self._program = import_ffmpeg().get_ffmpeg_exe()
        self._path, self._fps, self._gif, self._name = path, min(fps, MAX_GIF_FPS) if gif else fps, gif, name or path
        self._shape: tuple[int, ...] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self.frames = 0
        self.blank = True  # whether every frame so far has a single color

    def __enter__(self) -> "VideoWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close() if kind is None else self.abandon()

    def add(self, frame: Frame) -> None:
        self.blank = self.blank and bool((frame == frame[0, 0]).all())
        if self._shape is None:
            self._shape = frame.shape
        if frame.shape != self._shape:
            raise ProxRLError(f"the frames changed their size from {self._shape} to {frame.shape}; a video has one size")
        pixels = np.ascontiguousarray(enlarged(frame))
        if self._process is None:
            self._open(pixels.shape[1], pixels.shape[0])
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(pixels.data)
        except OSError as error:  # ffmpeg has closed its end
            raise self._failure(ERROR_SECONDS) from error
        self.frames += 1

    def close(self) -> None:
        """Finish the file. Raises a ProxRLError if ffmpeg could not finish it."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        try:
            with contextlib.suppress(OSError):  # ffmpeg did not read everything; its exit code is checked below
                self._process.stdin.close()
            if self._process.wait():
                raise self._failure()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Stop ffmpeg if it is still running."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # data that ffmpeg never read
                process.stdin.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _open(self, width: int, height: int) -> None:
        source = f"-f rawvideo -vcodec rawvideo -s {width}x{height} -pix_fmt rgb24 -r {self._fps:.6f} -i -".split()
        command = [self._program, "-y", "-loglevel", "error", *source, "-an", *(GIF if self._gif else MP4), str(self._path)]
        # A file, since nothing reads a pipe while frames are written.
        self._errors = tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._errors, **_no_ctrl_c()
            )
        except OSError as error:
            self.abandon()
            raise ProxRLError(f"ffmpeg can't be started: {self._program}: {error.strerror}") from error

    def _failure(self, seconds: float = 0) -> ProxRLError:
        """Stop ffmpeg, and return an exception with its error message."""
        assert self._process is not None
        assert self._errors is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self._errors.seek(0)
        reason = _reason(self._errors.read())
        self.abandon()
        return ProxRLError(f"ffmpeg can't write {self._name}: {reason}")


def _no_ctrl_c() -> dict[str, Any]:
    """Return arguments of Popen that shield ffmpeg from Ctrl-C, which a terminal sends to all its processes.

    This process decides what becomes of the file, and then stops ffmpeg.
    """
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def _reason(errors: bytes) -> str:
    """Return the first line of ffmpeg's errors, without the component that it names; later lines are consequences of it."""
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
    return re.sub(r"^(\[[^]]*\]\s*)+", "", lines[0]) if lines else "it stopped without an error message"


def preview(path: Path) -> tuple[bytes, int, int]:
    """Return a short, small GIF of a video, and its width and height."""
    every = max(1, -(-count_frames(path) // PREVIEW_FRAMES))
    filters = f"select=not(mod(n\\,{every})),scale='min({PREVIEW_WIDTH},iw)':-2:flags=area,"
    gif = _read(path, "-filter_complex", filters + PALETTE, "-f", "gif", "-")
    width, height = (int.from_bytes(gif[start : start + 2], "little") for start in (6, 8))
    return gif, width, height


def count_frames(path: Path) -> int:
    """Count the frames of a video without decoding them: ffmpeg prints a line for each, and header lines that begin with #."""
    lines = _read(path, "-map", "0:v:0", "-c", "copy", "-f", "framecrc", "-").splitlines()
    return sum(not line.startswith(b"#") for line in lines)


def _read(path: Path, *arguments: str) -> bytes:
    """Return the output of ffmpeg for a video. It gets no standard input, since it would consume the caller's."""
    program = import_ffmpeg().get_ffmpeg_exe()
    try:
        completed = subprocess.run(
            [program, "-loglevel", "error", "-i", str(path), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            **_no_ctrl_c(),
        )
    except OSError as error:
        raise ProxRLError(f"ffmpeg can't be started: {program}: {error.strerror}") from error
    output: bytes = completed.stdout
    if completed.returncode:
        raise ProxRLError(f"ffmpeg can't read {path}: {_reason(completed.stderr)}")
    return output
