"""`--init-from`: the checkpoint of another run from which a run starts, and the file that records it.

Only tensors, spaces and settings are read from the other run, which may be somebody else's: nothing that it names is imported.
"""

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from proxrl.common.files import read_regular, replacing
from proxrl.config import Config, flag
from proxrl.config.parse import as_words
from proxrl.envs.spaces import HasSpaces, space_difference, space_from_json
from proxrl.errors import ProxRLError
from proxrl.runs.folder import RunFolder
from proxrl.runs.lookup import find_run

if TYPE_CHECKING:  # not at run time, so that listing runs does not import torch
    import torch

# What is taken, by the beginnings of its names in checkpoints: weights and the statistics of observations, and the statistics of
# rewards, in whose scale the value function has learned. Optimizer, counters and learners start anew.
TAKEN = ("policy.", "rewards.")
# Settings that give weights another meaning without changing their shapes.
MEANING = (
    *("activation", "action_distribution", "image_channels", "actor_keys", "critic_keys"),
    *("encoder_kwargs", "policy_kwargs", "value_kwargs"),
)
# Settings that may name code for networks.
CODE = ("encoder", "policy", "value")
# The headings of other settings on which the networks depend, for advice.
NETWORKS = ("networks", "continuous actions", "bonuses and learners")


class Origin(NamedTuple):
    """The checkpoint from which a run started."""

    run: str  # its folder
    checkpoint: str
    step: int
    name: str = ""  # ENV/NAME/seedN

    def __str__(self) -> str:
        return f"{self.run}, checkpoint {self.checkpoint} (step {self.step:,})"

    def public(self) -> "Origin":
        """Return the same without the folder, which says something about this machine."""
        return self._replace(run=self.name)


class LoadedOrigin(NamedTuple):
    """What a run starts with, checked to fit it."""

    origin: Origin
    tensors: "dict[str, torch.Tensor]"


def load_origin(
    config: Config, own: RunFolder, runs_dir: Path, spaces: HasSpaces, here: "Mapping[str, torch.Tensor]"
) -> LoadedOrigin | None:
    """Return what --init-from names, or None if it is not given; raise an error that names what does not fit this run.

    `own` is the folder of this run, `here` are all tensors that it saves.
    """
    if config.init_from is None:
        return None
    label = f"{flag('init_from')} {config.init_from}"
    folder = find_run(config.init_from, runs_dir)
    if folder.path.resolve() == own.path.resolve():
        raise ProxRLError(f"{label} is the folder of this run itself; give this run another --name")
    tensors, state = folder.load_checkpoint(config.init_checkpoint, flag("init_checkpoint"))
    try:
        trained = (space_from_json(state[kind]) for kind in ("observation_space", "action_space"))
        difference, step = space_difference(spaces, *trained), int(state["step"])
    except (KeyError, TypeError, ValueError):
        raise ProxRLError(f"{label}: its checkpoint {config.init_checkpoint} lacks spaces or a step; use another") from None
    if difference is not None:
        raise ProxRLError(f"{label}: {difference}; start from a run with these spaces, or leave it out")
    theirs = None
    with contextlib.suppress(ProxRLError):  # settings of another version; the tensors alone decide then
        theirs = folder.unchecked_config()
    taken = {name: tensor for name, tensor in tensors.items() if name.startswith(TAKEN)}
    problem = misfit({name: tensor for name, tensor in here.items() if name.startswith(TAKEN)}, taken)
    if problem is not None:
        raise ProxRLError(f"{label} does not fit the networks of this run: {problem}{advice(config, theirs)}")
    changed = [name for name in MEANING if theirs is not None and not same(getattr(config, name), getattr(theirs, name))]
    if changed:
        raise ProxRLError(
            f"{label}: its weights would mean something else here, because {flag(changed[0])} is"
            f" {words(getattr(theirs, changed[0]))} there and {words(getattr(config, changed[0]))} here; use the same"
        )
    name = folder.path.name if theirs is None else f"{theirs.env}/{theirs.name}/seed{theirs.seed}"
    return LoadedOrigin(Origin(str(folder.path), config.init_checkpoint, step, name), taken)


def code_warnings(config: Config, origin: Origin) -> list[str]:
    """Return a line for each custom network that has another name in the other run, although its tensors fit. It may be the same
    code under another name, such as __main__:Net and my_module:Net, so this is not an error.
    """
    try:
        theirs = RunFolder(Path(origin.run)).unchecked_config()
    except ProxRLError:  # settings of another version
        return []
    pairs = {name: (getattr(theirs, name), getattr(config, name)) for name in CODE}
    return [
        f"warning: {flag(name)} is {words(there)} in that run and {words(here)} here, so its weights may mean something else"
        for name, (there, here) in pairs.items()
        if there != here and ":" in f"{there} {here}"
    ]


def misfit(here: "Mapping[str, torch.Tensor]", there: "Mapping[str, torch.Tensor]") -> str | None:
    """Return the first tensor that the other run lacks, has in another shape, or has too many; None if all fit."""
    for name, tensor in here.items():
        if name not in there:
            return f"{name} is missing there"
        if there[name].shape != tensor.shape:
            return f"{name} has shape {list(there[name].shape)} there and {list(tensor.shape)} here"
    return next((f"{name} is not part of this run" for name in there if name not in here), None)


def advice(config: Config, theirs: Config | None) -> str:
    """Return the settings of the other run that make its networks different."""
    if theirs is None:
        return ""
    names = [spec.name for spec in dataclasses.fields(Config) if spec.metadata["group"] in NETWORKS]
    names = [name for name in (*names, "normalize_observations") if name != "freeze"]
    different = {name: getattr(theirs, name) for name in names if not same(getattr(config, name), getattr(theirs, name))}
    flags = [
        flag(name if value else f"no_{name}") if isinstance(value, bool) else f"{flag(name)} {words(value)}"
        for name, value in different.items()
    ]
    return f"; that run has {' '.join(flags)}" if flags else ""


def same(one: object, other: object) -> bool:
    """Compare settings as text, because tuples in config.toml are read as lists."""
    return json.dumps(one, default=str, sort_keys=True) == json.dumps(other, default=str, sort_keys=True)


def words(value: object) -> str:
    return " ".join(as_words(value)) or "empty"


def start_from(loaded: LoadedOrigin | None, folder: RunFolder, here: "Mapping[str, torch.Tensor]") -> None:
    """Copy what was loaded into the tensors of a new run, and record where it came from; nothing if there is nothing to load."""
    folder.origin_path.unlink(missing_ok=True)  # of an attempt that ended before its first checkpoint
    if loaded is None:
        return
    for name, tensor in loaded.tensors.items():
        here[name].copy_(tensor)
    with replacing(folder.origin_path) as temporary:
        temporary.write_text(json.dumps(loaded.origin._asdict()) + "\n", encoding="utf-8")


def read_origin(folder: RunFolder) -> Origin | None:
    """Return from which checkpoint the run started; None if from none, or if the file can't be read."""
    try:
        entry = json.loads(read_regular(folder.origin_path))
        run = str(entry["run"])
        return Origin(run, str(entry["checkpoint"]), int(entry["step"]), str(entry.get("name") or Path(run).name))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
