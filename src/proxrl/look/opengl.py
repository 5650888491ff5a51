"""Finds out whether there is a display, and chooses an OpenGL for MuJoCo that renders without one."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from functools import cache

from proxrl.envs.registry import MUJOCO, OTHER, EnvName, find_family

APT_LINE = "sudo apt install libegl1 libgl1-mesa-dri libosmesa6 (Debian, Ubuntu)"
SET_GL = "if it uses mujoco.Renderer, set MUJOCO_GL=egl before starting proxrl"
# EGL is the fastest and uses a GPU if there is one; GLFW needs a display.
BACKENDS = ("egl", "osmesa", "glfw")
# Each is tried in a separate process: the choice can't be changed once the library is loaded, and some failures end the process.
PROBE = """
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><light pos='0 0 3'/><geom size='.5'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 32, 32)
renderer.update_scene(data)
image = renderer.render()
raise SystemExit(0 if image.min() < image.max() else 1)
"""
PROBE_SECONDS = 60.0


def has_display() -> bool:
    """Return whether a window can be opened: on Linux there may be no display, and SDL_VIDEODRIVER may name a driver that shows
    nothing, or one that needs no window system.
    """
    driver = os.environ.get("SDL_VIDEODRIVER")
    if driver in ("dummy", "offscreen"):
        return False
    return not sys.platform.startswith("linux") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))) or bool(driver)


def may_need_mujoco_gl(env: EnvName) -> bool:
    """Return whether to choose an OpenGL before the environment is created, for `mujoco.Renderer`.

    Trying takes a second, so only if the environment may use MuJoCo and there is no display, which MuJoCo's default needs.
    """
    if "mujoco" in sys.modules or has_display() or importlib.util.find_spec("mujoco") is None:
        return False
    # A custom environment is not looked up: that would import it, and perhaps MuJoCo with it.
    custom = not isinstance(env, str) or ":" in env
    return custom or find_family(env) in (MUJOCO, OTHER)


@cache
def choose_mujoco_gl() -> bool:
    """Set MUJOCO_GL to a backend that works here, unless the user has set it, and return whether there is one.

    Gymnasium's tasks read the variable when they first render, but `mujoco.Renderer` reads it when mujoco is imported, so it
    must be set before that.
    """
    if not sys.platform.startswith("linux") or os.environ.get("MUJOCO_GL"):
        return True
    for backend in BACKENDS:
        if _works(backend):
            os.environ["MUJOCO_GL"] = backend
            return True
    return False


def _works(backend: str) -> bool:
    environment = {**os.environ, "MUJOCO_GL": backend}
    command = [sys.executable, "-c", PROBE]
    try:
        with tempfile.TemporaryDirectory() as folder:  # MuJoCo writes a log to the current folder when it fails
            probe = subprocess.run(command, env=environment, capture_output=True, timeout=PROBE_SECONDS, cwd=folder)
    except (OSError, subprocess.SubprocessError):
        return False
    return probe.returncode == 0
