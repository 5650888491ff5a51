"""Select the command, run it, and turn errors into one line and an exit code. Each command is in the file of its name."""

import atexit
import difflib
import gc
import importlib
import io
import itertools
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType

from proxrl.cli.parser import Parser
from proxrl.errors import ProxRLError, printable
from proxrl.world.launcher import launched, should_report

COMMANDS = {
    "train": {
        "train": "train on an environment, or resume",
        "tune": "search for better settings",
        "check": "find problems of an environment that would spoil training",
        "bench": "measure how fast this machine trains, and where time is spent",
        "envs": "list families of environments and how to install them",
    },
    "look": {
        "eval": "play episodes with a trained policy and print the return",
        "play": "show a trained policy in a window",
        "record": "record a video of a trained policy",
        "runs": "list runs with their progress and returns",
        "plot": "draw learning curves",
        "compare": "compare the returns of runs with each other and with published ones",
        "report": "write one HTML page about runs",
        "watch": "serve that page live while runs train",
    },
    "share": {
        "export": "write the policy as one ONNX or torch.export file, with a model card",
    },
}


def command_names() -> list[str]:
    return [name for group in COMMANDS.values() for name in group]


def make_parser(name: str) -> Parser:
    """Return the parser of one command. Only that command's file is imported, so help and typos get an immediate response."""
    command = command_module(name)
    parser = Parser(name, command.DESCRIPTION)
    command.add_arguments(parser)
    last = parser.add_group("help") if parser.groups else parser
    last.add_argument("--debug", action="store_true", help="show the traceback of an error")
    last.add_argument("-h", "--help", action="help", help="show this text")
    return parser


def command_module(name: str) -> ModuleType:
    """Import the file of a command."""
    return importlib.import_module(f"proxrl.cli.{name}")


def overview() -> str:
    """Return the text of `proxrl --help`."""
    width = max(map(len, command_names()))
    lines = ["usage: proxrl COMMAND ...", "", "Proximal Policy Optimization you can read in one sitting."]
    for heading, commands in COMMANDS.items():
        lines += ["", f"{heading}:", *(f"  {name:<{width}}  {summary}" for name, summary in commands.items())]
    return "\n".join([*lines, "", "'proxrl COMMAND --help' describes a command, 'proxrl --version' prints the version."])


def main(words: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code: 0 done, 1 unexpected error, 2 bad input, 128 + n stopped by signal n."""
    if words is None:  # this process has nothing to do after the command
        atexit.register(gc.freeze)
    words = list(sys.argv[1:] if words is None else words)
    debug = "--debug" in words
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a pipe on Windows may not be able to encode "±"
            stream.reconfigure(errors="replace")
    try:
        code = dispatch(words)
        sys.stdout.flush()
        return code
    except ProxRLError as error:
        if is_solo(words) or should_report(error):
            if debug:
                traceback.print_exc()
            rank = f"rank {launched().rank}: " if launched().rank else ""
            print(f"proxrl: error: {rank}{' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("proxrl: interrupted; no checkpoint was damaged", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has closed the pipe; without this, Python would print an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        reason = printable(" ".join(str(error).split()))
        print(f"proxrl: unexpected {type(error).__name__}: {reason}; --debug shows where it came from", file=sys.stderr)
        return 1


def is_solo(words: Sequence[str]) -> bool:
    """Return whether each rank of a launcher trains alone and reports its own errors."""
    return "--world=solo" in words or ("--world", "solo") in itertools.pairwise(words)


def dispatch(words: Sequence[str]) -> int:
    """Run the command that the first word names, with the other words as its arguments."""
    name, rest = (words[0], words[1:]) if words else ("--help", ())
    if name in ("--help", "-h"):
        print(overview())
        return 0
    if name == "--version":
        from proxrl import __version__

        print(f"proxrl {__version__}")
        return 0
    if name not in command_names():
        nearest = difflib.get_close_matches(name, command_names(), n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise ProxRLError(f"there is no command {name!r}{hint} ('proxrl --help' lists them)")
    parser = make_parser(name)
    parser.check_flags(rest)
    code: int = command_module(name).run(vars(parser.parse_args(rest)))
    return code
