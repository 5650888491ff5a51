"""Whether there is a display, and an OpenGL for MuJoCo that draws without one."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from functools import cache

from proxrl.envs.registry import MUJOCO, OTHER, EnvName, find_family

APT_LINE = "sudo apt install libegl1 libgl1-mesa-dri libosmesa6 (Debian, Ubuntu)"
SET_GL = "if mujoco.Renderer draws it, set MUJOCO_GL=egl before the start"
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
    """On Linux there may be none; or SDL was told by name of a driver that shows nothing, or that needs no window system."""
    driver = os.environ.get("SDL_VIDEODRIVER")
    if driver in ("dummy", "offscreen"):
        return False
    return not sys.platform.startswith("linux") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))) or bool(driver)


def may_need_mujoco_gl(env: EnvName) -> bool:
    """Whether to choose before the environment is made, for `mujoco.Renderer`. Trying takes a second, so only where MuJoCo may be
    behind it, and its own choice, which needs a display, would be wrong.
    """
    if "mujoco" in sys.modules or has_display() or importlib.util.find_spec("mujoco") is None:
        return False
    # One's own is not looked up: that would import it, and MuJoCo with it.
    own = not isinstance(env, str) or ":" in env
    return own or find_family(env) in (MUJOCO, OTHER)


@cache
def choose_mujoco_gl() -> bool:
    """Set MUJOCO_GL to what draws here, unless the user has set it; says whether anything does. Gymnasium's tasks read it when
    they first draw, but `mujoco.Renderer` when mujoco is imported: for that, this must come before.
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
