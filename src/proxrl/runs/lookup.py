"""Runs by name or by folder: how those who look at runs find them, and which of them belong together."""

import difflib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from proxrl.errors import ProxRLError
from proxrl.common.files import one_line_errors
from proxrl.runs.folder import RunFolder, folder_name


def find_runs(places: Iterable[str | Path]) -> list[RunFolder]:
    """All runs at or below the given folders; a run may also be named as `find_run` takes it. One whose settings can't be read
    is told and left out: it must not hide the others.
    """
    found: dict[Path, RunFolder] = {}
    for place in map(Path, places):
        below, broken = runs_below(place) if place.exists() else ([find_run(place)], {})
        if not below and broken:
            raise ProxRLError(next(iter(broken.values())))
        if not below:
            raise ProxRLError(f"no runs at {place}; give run folders, or a folder above them such as runs/CartPole-v1")
        for path, problem in broken.items():
            print(f"proxrl: {path} is left out: {problem}", file=sys.stderr)
        for run in below:
            found.setdefault(run.path.resolve(), run)
    return list(found.values())


def runs_below(place: Path) -> tuple[list[RunFolder], dict[Path, str]]:
    """The runs at or below a folder, and what is wrong with those that can't be read. Other programs have a config.toml too."""
    with one_line_errors("look for runs in", place):
        folders = [RunFolder(path.parent) for path in sorted(place.glob("**/config.toml")) if path.is_file()]
    runs, broken = [], {}
    for folder in folders:
        try:
            runs += [folder] if "env" in folder.settings() else []
        except ProxRLError as error:
            broken[folder.path] = str(error)
    return runs, broken


def names_apart(runs: Iterable[tuple[Path, str, str]]) -> set[tuple[str, str]]:
    """Of runs by folder, environment and name: environment and name of those that lie in several places. They are no seeds of
    one another.
    """
    places: dict[tuple[str, str], set[Path]] = {}
    for path, env, name in runs:
        places.setdefault((env, name), set()).add(path.resolve().parent)
    return {key for key, found in places.items() if len(found) > 1}


def labels(runs: Sequence[tuple[Path, str, str]]) -> list[str]:
    """The name of each run, with its folder where several hold runs of that environment and name."""
    apart = names_apart(runs)
    return [f"{name} ({path.parent})" if (env, name) in apart else name for path, env, name in runs]


def find_run(text: str | Path) -> RunFolder:
    """The run that `text` names: its folder, or a folder above it with no other run below; also relative to `runs/`."""
    places = [Path(text), Path("runs") / text, Path("runs") / folder_name(str(text))]
    with one_line_errors("look for runs in", Path(text)):
        for place in places:
            if (place / "config.toml").is_file():
                return RunFolder(place)
            # No deeper than <env>/<name>/seed<k>, so that a wrong word does not search a whole disk.
            below = sorted({found.parent for depth in (1, 2, 3) for found in place.glob("*/" * depth + "config.toml")})
            if len(below) == 1:
                return RunFolder(below[0])
            if below:
                choices = ", ".join(map(str, below[:5])) + (f" and {len(below) - 5} more" if len(below) > 5 else "")
                raise ProxRLError(f"{len(below)} runs are below {place}; name one of {choices}")
    known = [folder.name for folder in Path("runs").glob("*") if folder.is_dir()]
    near = difflib.get_close_matches(str(text).partition("/")[0], known, n=1)
    advice = f"did you mean {near[0]}?" if near else "'proxrl runs' lists those below a folder"
    raise ProxRLError(f"no run at {str(text)!r}: neither {places[0]} nor {places[1]} holds a config.toml; {advice}")
