"""Whether there is a display, and an OpenGL for MuJoCo that draws without one."""

import os
import subprocess
import sys
import tempfile
from functools import cache

APT_LINE = "sudo apt install libegl1 libgl1-mesa-dri libosmesa6 (Debian, Ubuntu)"
# The first is the fastest and uses a GPU where there is one; the last needs a display.
BACKENDS = ("egl", "osmesa", "glfw")
# Tried in a process of its own: a wrong guess can't be taken back once the library is loaded, and some end the process.
PROBE = """
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><light pos='0 0 3'/><geom size='.5'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 32, 32)
renderer.update_scene(data)
picture = renderer.render()
raise SystemExit(0 if picture.min() < picture.max() else 1)
"""
PROBE_SECONDS = 60.0


def has_display() -> bool:
    """On Linux there may be none; or SDL was told by name of a driver that shows something without a window system."""
    driver = os.environ.get("SDL_VIDEODRIVER") or "dummy"
    shows = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")) or driver not in ("dummy", "offscreen")
    return not sys.platform.startswith("linux") or shows


@cache
def choose_mujoco_gl() -> bool:
    """Set MUJOCO_GL to what draws here, unless the user has set it; says whether anything does. MuJoCo reads it when it first
    draws, so this may come after it was imported.
    """
    if not sys.platform.startswith("linux") or os.environ.get("MUJOCO_GL"):
        return True
    for backend in BACKENDS:
        if _draws(backend):
            os.environ["MUJOCO_GL"] = backend
            return True
    return False


def _draws(backend: str) -> bool:
    environment = {**os.environ, "MUJOCO_GL": backend}
    words = [sys.executable, "-c", PROBE]
    try:
        with tempfile.TemporaryDirectory() as folder:  # MuJoCo leaves a log where it fails
            probe = subprocess.run(words, env=environment, capture_output=True, timeout=PROBE_SECONDS, cwd=folder)
    except (OSError, subprocess.SubprocessError):
        return False
    return probe.returncode == 0
