"""A virtual screen for tests of windows."""

import os
import struct
import subprocess
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class Screen:
    """An X server that draws to a file instead of a screen."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "Xvfb_screen0"
        # Without -noreset the server resets itself when its last client leaves, and drops clients that connect at that moment.
        command = ["Xvfb", "-displayfd", "1", "-screen", "0", "800x600x24", "-fbdir", str(folder), "-nolisten", "tcp", "-noreset"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        display = f":{self.process.stdout.readline().strip()}"
        # This process itself renders with the dummy driver.
        self.environment = {"DISPLAY": display, "WAYLAND_DISPLAY": "", "SDL_VIDEODRIVER": "x11"}

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)

    def pixels(self) -> NDArray[np.uint8]:
        """Read the screen [height, width, 3] from an XWD file: big-endian 32-bit integers, a color table, and rows of BGRX."""
        data = self.file.read_bytes()
        header = struct.unpack(">25I", data[:100])
        size, width, height, row_bytes, colors = header[0], header[4], header[5], header[12], header[19]
        rows = np.frombuffer(data, np.uint8, height * row_bytes, size + 12 * colors).reshape(height, row_bytes)
        return rows[:, : 4 * width].reshape(height, width, 4)[:, :, 2::-1]

    def xdotool(self, *arguments: str) -> str:
        environment = {**os.environ, **self.environment}
        return subprocess.run(["xdotool", *arguments], env=environment, capture_output=True, text=True, timeout=20).stdout.strip()
