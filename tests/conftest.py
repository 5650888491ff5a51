"""Here so that pytest puts this folder on the path: tests of every subfolder import `harness`."""

import os
import shutil
import signal
from collections.abc import Iterator

import pytest

from screens import Screen

# A shell starts background jobs with Ctrl-C ignored, and processes inherit that: the tests of signals need it to arrive.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests, and the commands that they start, don't touch the key of the user who runs them."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def screen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Screen]:
    for program, package in (("Xvfb", "xvfb"), ("xdotool", "xdotool")):
        if shutil.which(program) is None:
            pytest.skip(f"looking at a window needs {program}: sudo apt install {package}")
    made = Screen(tmp_path_factory.mktemp("screen"))
    yield made
    made.close()
