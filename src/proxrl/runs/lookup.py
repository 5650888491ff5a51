"""Find runs by folder or by name. Every command and function that takes a run uses the rules in this file."""

import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from proxrl.common.files import one_line_errors
from proxrl.errors import ProxRLError, printable
from proxrl.runs.folder import RUNS_DIR, RunFolder, folder_name

MOST_CHOICES = 5  # how many runs an error message lists


def find_run(run: str | Path, runs_dir: str | Path = RUNS_DIR) -> RunFolder:
    """Return the one run that `run` stands for.

    `run` is a folder, or ENV, ENV/NAME or ENV/NAME/seedK below `runs_dir`. A folder above a run will do if no other run is
    below it.
    """
    candidates = candidate_folders(run, runs_dir)
    for folder in candidates:
        with one_line_errors("look for runs in", folder):
            if (folder / "config.toml").is_file():
                return RunFolder(folder)
            # No deeper than <env>/<name>/seed<k>, so that a mistyped name does not search a whole disk.
            below = sorted({file.parent for depth in (1, 2, 3) for file in folder.glob("*/" * depth + "config.toml")})
        if len(below) == 1:
            return RunFolder(below[0])
        if below:
            rest = f" and {len(below) - MOST_CHOICES} more" if len(below) > MOST_CHOICES else ""
            choices = ", ".join(map(str, below[:MOST_CHOICES])) + rest
            raise ProxRLError(f"{len(below)} runs are below {folder}; name one of {choices}")
    raise _no_run(run, runs_dir, candidates)


def find_runs(runs: Iterable[str | Path], runs_dir: str | Path = RUNS_DIR) -> list[RunFolder]:
    """Return all runs at or below the folders that `runs` stand for, by the rules of `find_run`.

    A run whose settings can't be read is reported on stderr and left out, so that it does not hide the others.
    """
    found: dict[Path, RunFolder] = {}
    for run in runs:
        readable, broken = _all_runs(run, runs_dir)
        if not readable:
            raise ProxRLError(next(iter(broken.values())))
        for path, problem in broken.items():
            print(printable(f"proxrl: {path} is left out: {problem}"), file=sys.stderr)
        for folder in readable:
            found.setdefault(folder.path.resolve(), folder)
    return list(found.values())


def find_folder(run: str | Path, runs_dir: str | Path = RUNS_DIR) -> Path:
    """Return the folder that `run` stands for; unlike `find_runs`, accept an existing folder that has no run yet."""
    candidates = candidate_folders(run, runs_dir)
    with one_line_errors("look for runs in", candidates[0]):
        folders = [folder for folder in candidates if folder.is_dir()]
    if not folders:
        raise ProxRLError(f"there is no folder {_listed(candidates)}; start a run, name a folder of runs, or give --runs-dir")
    return next((folder for folder in folders if any(runs_below(folder))), folders[0])


def candidate_folders(run: str | Path, runs_dir: str | Path = RUNS_DIR) -> list[Path]:
    """Return the folders that `run` may stand for, in the order in which they are searched.

    The first is `run` itself, taken as a path. The others are below `runs_dir`, both as written and with ENV turned into the
    name of its folder. ENV may contain slashes and colons (`ALE/Pong-v5`, `my_package:make_env`), so where it ends is only
    certain before NAME/seedK; otherwise both readings, ENV/NAME and ENV, are tried.
    """
    path, root = Path(run), Path(runs_dir)
    name = path.relative_to(root) if path.is_relative_to(root) else path
    if name.is_absolute() or name.parts[:1] == ("..",):
        return [path]  # it can't be the name of an environment
    ends = [-2] if re.fullmatch(r"seed\d+", name.name) else [-1, len(name.parts)]
    named = [root.joinpath(folder_name("/".join(name.parts[:end])), *name.parts[end:]) for end in ends if name.parts[:end]]
    return list(dict.fromkeys([path, root / name, *named]))


def runs_below(folder: Path) -> tuple[list[RunFolder], dict[Path, str]]:
    """Return the runs at or below a folder, and by path what is wrong with those that can't be read.

    A config.toml without an environment belongs to another program and is skipped.
    """
    with one_line_errors("look for runs in", folder):
        candidates = [RunFolder(path.parent) for path in sorted(folder.glob("**/config.toml")) if path.is_file()]
    runs, broken = [], {}
    for candidate in candidates:
        try:
            runs += [candidate] if "env" in candidate.settings() else []
        except ProxRLError as error:
            broken[candidate.path] = str(error)
    return runs, broken


def names_apart(runs: Iterable[tuple[Path, str, str]]) -> set[tuple[str, str]]:
    """Return the (environment, name) pairs whose runs lie in several folders, given (folder, environment, name) of each run.

    Such runs are not seeds of one experiment.
    """
    parents: dict[tuple[str, str], set[Path]] = {}
    for path, env, name in runs:
        parents.setdefault((env, name), set()).add(path.resolve().parent)
    return {key for key, folders in parents.items() if len(folders) > 1}


def labels(runs: Sequence[tuple[Path, str, str]]) -> list[str]:
    """Return the name of each run, with its folder if several folders hold runs of that environment and name."""
    apart = names_apart(runs)
    return [f"{name} ({path.parent})" if (env, name) in apart else name for path, env, name in runs]


def _all_runs(run: str | Path, runs_dir: str | Path) -> tuple[list[RunFolder], dict[Path, str]]:
    candidates = candidate_folders(run, runs_dir)
    for folder in candidates:
        readable, broken = runs_below(folder)
        if readable or broken:
            return readable, broken
    raise _no_run(run, runs_dir, candidates)


def _no_run(run: str | Path, runs_dir: str | Path, searched: Sequence[Path]) -> ProxRLError:
    known = [folder.name for folder in Path(runs_dir).glob("*") if folder.is_dir()]
    similar = difflib.get_close_matches(folder_name(str(run)), known, n=1) or difflib.get_close_matches(
        folder_name(str(run).partition("/")[0]), known, n=1
    )
    advice = f"did you mean {similar[0]}?" if similar else "'proxrl runs' lists the runs of a folder, --runs-dir names another"
    return ProxRLError(f"no run at {str(run)!r}: searched {_listed(searched)}; {advice}")


def _listed(folders: Sequence[Path]) -> str:
    return " and ".join(filter(None, [", ".join(map(str, folders[:-1])), str(folders[-1])]))
