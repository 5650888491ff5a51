"""A virtual screen for tests that look at windows."""

import os
import struct
import subprocess
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class Screen:
    """An X server without a screen; its pixels are in a file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "Xvfb_screen0"
        # Without -noreset it begins anew whenever its last client leaves, and drops whoever connects at that moment.
        words = ["Xvfb", "-displayfd", "1", "-screen", "0", "800x600x24", "-fbdir", str(folder), "-nolisten", "tcp", "-noreset"]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        display = f":{self.process.stdout.readline().strip()}"
        # The dummy driver is what this process itself draws with.
        self.environment = {"DISPLAY": display, "WAYLAND_DISPLAY": "", "SDL_VIDEODRIVER": "x11"}

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)

    def pixels(self) -> NDArray[np.uint8]:
        """[height, width, 3] from the server's XWD file: a header of big-endian words, a colour table, rows of BGRX."""
        data = self.file.read_bytes()
        header = struct.unpack(">25I", data[:100])
        size, width, height, row, colours = header[0], header[4], header[5], header[12], header[19]
        rows = np.frombuffer(data, np.uint8, height * row, size + 12 * colours).reshape(height, row)
        return rows[:, : 4 * width].reshape(height, width, 4)[:, :, 2::-1]

    def tool(self, *words: str) -> str:
        environment = {**os.environ, **self.environment}
        return subprocess.run(["xdotool", *words], env=environment, capture_output=True, text=True, timeout=20).stdout.strip()
