"""A run's policy as one file that needs no ProxRL: ONNX, or torch's own exported program. A model card lies beside it."""

import contextlib
import importlib.util
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram

from proxrl import __version__
from proxrl.common.files import one_line_errors, replacing
from proxrl.config import flag
from proxrl.config.parse import toml_value
from proxrl.envs.spaces import space_to_json
from proxrl.errors import ProxRLError, check_at_least, one_line
from proxrl.export.card import PRIVATE, model_card, observation_preparation
from proxrl.export.deployed import Deployed
from proxrl.export.verify import Arrays, largest_difference, sample_inputs
from proxrl.look.agent import Agent, load_changed
from proxrl.look.evaluation import evaluate_and_save
from proxrl.policy.networks import make_policy
from proxrl.runs.evaluations import current_evaluation
from proxrl.runs.folder import RUNS_DIR, RunFolder, is_card
from proxrl.runs.lookup import find_run

FORMATS = ("onnx", "pt2")
# Not the newest: runtimes of some years ago read it too.
OPSET = 18
# Of the file from the policy. Float arithmetic in another order differs by a few 1e-7.
TOLERANCE = 1e-4
# Beyond it one file can't hold an ONNX model.
MOST_ONNX_BYTES = 2**31 - 2**20
CARD, SETTINGS = "README.md", "settings.toml"


@dataclass(frozen=True)
class Exported:
    path: Path  # of the policy
    card: Path
    difference: float  # the largest one between the file and the policy
    step: int


def export_policy(
    run: str | Path,
    format: str = "onnx",
    checkpoint: str = "latest",
    out: str | Path | None = None,
    episodes: int = 20,
    runs_dir: str | Path = RUNS_DIR,
) -> Exported:
    """Write policy, model card and settings to the folder `out`, by default `export` in the run's.

    The card states the scores that the run keeps for this checkpoint, or else those of as many episodes; 0 leaves them out.
    """
    check_format(format)
    check_at_least("--episodes", episodes, 0)
    folder = find_run(run, runs_dir)
    place = folder.path / "export" if out is None else Path(out)
    path, settings, card = place / f"policy.{format}", place / SETTINGS, place / CARD
    _refuse_foreign(card, path, settings)
    # As it will be used: elsewhere, in single precision.
    agent = load_changed(folder, checkpoint, {"device": "cpu", "precision": "float32", "compile": False})
    deployed = deploy(agent)
    inputs = tuple(map(torch.from_numpy, sample_inputs(deployed, agent.action_space, np.random.default_rng(0), 3).values()))
    outputs = deployed(*inputs)
    program = trace(agent, deployed, inputs)
    preparation = observation_preparation(agent.config)
    facts = describe(agent, deployed, checkpoint, preparation)
    with one_line_errors("write to", place):
        place.mkdir(parents=True, exist_ok=True)
        # All three or none. The last takes its place first, so whatever lies there after a kill is known to be an export's.
        with replacing(path) as new_policy, replacing(settings) as new_settings, replacing(card) as new_card:
            run_file = write_and_read(program, format, list(outputs), facts, new_policy)
            difference = largest_difference(agent, deployed, run_file)
            if not difference <= TOLERANCE:
                raise ProxRLError(f"the {format} file differs from the policy by {difference:.2g}, so it was not kept")
            scores = scores_of(folder, agent, checkpoint, episodes)
            new_settings.write_text(public_settings(folder), encoding="utf-8")
            text = model_card(folder, agent, deployed.inputs, outputs, path.name, checkpoint, scores, preparation)
            new_card.write_text(text, encoding="utf-8")
    return Exported(path, card, difference, agent.step)


def check_format(format: str) -> None:
    if format not in FORMATS:
        raise ProxRLError(f"--format {format}: there is no such format; use {' or '.join(FORMATS)}")
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if format == "onnx" and not _installed(name)]
    if missing:
        raise ProxRLError(f"--format onnx needs {', '.join(missing)}: pip install 'proxrl[export]' (--format pt2 needs nothing)")


def _installed(name: str) -> bool:
    with contextlib.suppress(ValueError):  # a module that was made without a spec
        return importlib.util.find_spec(name) is not None
    return False


def _refuse_foreign(card: Path, *others: Path) -> None:
    """A project has a README.md and settings of its own, and an export there would take their place."""
    for path in (card, *others):
        if path.exists() and not is_card(card):
            raise ProxRLError(f"{path} was not written by 'proxrl export'; give another folder by --out")


def public_settings(folder: RunFolder) -> str:
    """The run's settings as they are written, but for what is nobody else's."""
    settings = ((name, value) for name, value in folder.settings().items() if name not in PRIVATE)
    return "".join(f"{name} = {toml_value(value)}\n" for name, value in settings)


def deploy(agent: Agent) -> Deployed:
    """On a copy of the policy: the agent's parameters are views of one buffer, all of which a file would hold for each."""
    policy = make_policy(agent.config, agent.observation_space, agent.action_space)
    policy.load_state_dict(agent.policy.state_dict())
    return Deployed(policy.requires_grad_(False), agent.config, agent.observation_space, agent.action_space).eval()


def trace(agent: Agent, deployed: Deployed, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    """The policy as a graph, for any number of rows."""
    reason: Exception | None = None
    # The second way reads the code of `forward`, and gets over what the first can't run, such as len() of a tensor.
    for strict in (False, True):
        try:
            with quiet(), torch.no_grad():
                program = torch.export.export(deployed, inputs, dynamic_shapes=any_rows(len(inputs)), strict=strict)
        except Exception as error:
            reason = reason or error
            continue
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # paths of this machine
        return program
    assert reason is not None
    own = [name for name in ("encoder", "policy", "value") if ":" in (getattr(agent.config, name) or "")]
    what = " or ".join(f"{flag(name)} {getattr(agent.config, name)}" for name in own) or "this policy"
    raise ProxRLError(f"torch.export can't read {what}: {one_line(reason)}") from reason


def describe(agent: Agent, deployed: Deployed, checkpoint: str, preparation: dict[str, Any]) -> dict[str, str]:
    """What the file says about itself."""
    config = agent.config
    return {
        "proxrl_version": __version__,
        "environment": config.env,
        "run": f"{config.name}/seed{config.seed}",
        "checkpoint": checkpoint,
        "step": str(agent.step),
        "inputs": json.dumps([one.name for one in deployed.inputs]),
        "observation_preparation": json.dumps(preparation),
        "observation_space": json.dumps(space_to_json(agent.observation_space)),
        "action_space": json.dumps(space_to_json(agent.action_space)),
    }


def any_rows(inputs: int) -> Any:
    """What `dynamic_shapes` takes: all inputs have the same number of rows, whichever it is."""
    rows = torch.export.Dim("batch", min=1)
    return (tuple({0: rows} for _ in range(inputs)),)


def write_and_read(
    program: ExportedProgram, format: str, outputs: list[str], facts: dict[str, str], path: Path
) -> Callable[[Arrays], Arrays]:
    """The file as a function, once it is written."""
    try:
        if format == "pt2":
            write_pt2(program, facts, path)
            return read_pt2(path)
        write_onnx(program, json.loads(facts["inputs"]), outputs, facts, path)
        return read_onnx(path)
    except (ProxRLError, OSError):
        raise
    except Exception as error:  # an operation that the format or its runtime does not have
        raise ProxRLError(f"this policy can't be written as {format}: {one_line(error)}") from error


def write_onnx(program: ExportedProgram, inputs: list[str], outputs: list[str], facts: dict[str, str], path: Path) -> None:
    import onnx

    size = sum(tensor.nbytes for tensor in program.state_dict.values())
    if size > MOST_ONNX_BYTES:
        raise ProxRLError(f"the policy has {size:,} bytes, and an ONNX file holds 2 GB at most; use --format pt2")
    with quiet():
        made = torch.onnx.export(
            program,
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=any_rows(len(inputs)),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
        assert made is not None
        for node in made.model.graph.all_nodes():
            node.metadata_props.clear()  # where in torch's and this code each came from
        made.model.metadata_props.clear()
        made.model.metadata_props.update(facts)
        made.save(path, external_data=False)
    onnx.checker.check_model(path, full_check=True)


def write_pt2(program: ExportedProgram, facts: dict[str, str], path: Path) -> None:
    with quiet(), open(path, "wb") as file:
        torch.export.save(program, file, extra_files={"proxrl.json": json.dumps(facts)})


def read_onnx(path: Path) -> Callable[[Arrays], Arrays]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(outputs, session.run(None, inputs), strict=True))


def read_pt2(path: Path) -> Callable[[Arrays], Arrays]:
    with quiet(), open(path, "rb") as file:
        module = torch.export.load(file).module()
    return lambda inputs: {name: value.numpy() for name, value in module(*map(torch.from_numpy, inputs.values())).items()}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Torch's exporters warn about their own insides."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def scores_of(folder: RunFolder, agent: Agent, checkpoint: str, episodes: int) -> dict[str, Any]:
    """Summaries by kind: those that are kept, if they are of this very step, or new ones; none for no episodes."""
    kept = current_evaluation(folder, checkpoint)
    if kept is not None:
        return {kind: kept[kind] for kind in ("deterministic", "stochastic")}
    if episodes == 0:
        return {}
    try:
        scores = evaluate_and_save(folder.path, episodes, checkpoint=checkpoint, agent=agent)
    except ProxRLError as error:
        raise ProxRLError(f"nothing is written, since the scores are not known: {error}; --episodes 0 leaves them out") from error
    return {kind: score.summary() for kind, score in scores.items()}
