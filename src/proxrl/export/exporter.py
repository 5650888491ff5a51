"""Export of a run's policy to one file that needs no ProxRL, in ONNX or torch.export's format, with a model card."""

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
from proxrl.config import OFF, flag
from proxrl.config.parse import toml_value
from proxrl.envs.spaces import space_to_json
from proxrl.errors import ProxRLError, check_at_least, one_line
from proxrl.export.card import PRIVATE, model_card, observation_preparation, public_origin
from proxrl.export.deployed import Deployed
from proxrl.export.verify import Arrays, largest_difference, sample_inputs
from proxrl.look.agent import Agent, load_changed
from proxrl.look.evaluation import evaluate_and_save
from proxrl.policy.networks import add_value_streams, make_policy
from proxrl.runs.evaluations import current_evaluation
from proxrl.runs.folder import RUNS_DIR, RunFolder, is_card
from proxrl.runs.lookup import find_run

FORMATS = ("onnx", "pt2")
# Not the newest, so that runtimes of recent years can read it.
OPSET = 18
# Largest allowed difference between the file and the policy. Another order of float operations differs by a few 1e-7.
TOLERANCE = 1e-4
# Limit of a single ONNX file.
MOST_ONNX_BYTES = 2**31 - 2**20
CARD, SETTINGS = "README.md", "settings.toml"


@dataclass(frozen=True)
class Exported:
    path: Path  # of the policy
    card: Path
    difference: float  # the largest between the file and the policy
    step: int


def export_policy(
    run: str | Path,
    format: str = "onnx",
    checkpoint: str = "latest",
    out: str | Path | None = None,
    episodes: int = 20,
    runs_dir: str | Path = RUNS_DIR,
    trust: bool = False,
) -> Exported:
    """Write the policy, a model card and the settings to the folder `out`, by default `export` in the run's folder.

    The card contains the scores of the checkpoint's last evaluation, or of a new one with this number of episodes; 0 omits them.
    `trust` allows a run that somebody else has made to import the code that its settings name.
    """
    check_format(format)
    check_at_least("--episodes", episodes, 0)
    folder = find_run(run, runs_dir)
    target = folder.path / "export" if out is None else Path(out)
    path, settings, card = target / f"policy.{format}", target / SETTINGS, target / CARD
    _refuse_foreign(card, path, settings)
    # The file is used elsewhere, in single precision.
    agent = load_changed(folder, checkpoint, {"device": "cpu", "precision": "float32", "compile": False}, trust)
    deployed = deploy(agent)
    inputs = tuple(map(torch.from_numpy, sample_inputs(deployed, agent.action_space, np.random.default_rng(0), 3).values()))
    outputs = deployed(*inputs)
    program = trace(agent, deployed, inputs)
    preparation = observation_preparation(agent.config)
    facts = describe(agent, deployed, checkpoint, preparation)
    with one_line_errors("write to", target):
        target.mkdir(parents=True, exist_ok=True)
        # All three files or none. The last one, the card, is renamed first: if the process is killed here, it identifies the
        # folder as an export.
        with replacing(path) as new_policy, replacing(settings) as new_settings, replacing(card) as new_card:
            run_file = write_and_read(program, format, list(outputs), facts, new_policy)
            difference = largest_difference(agent, deployed, run_file)
            if not difference <= TOLERANCE:
                raise ProxRLError(f"the {format} file differs from the policy by {difference:.2g}, so it was discarded")
            scores = checkpoint_scores(folder, agent, checkpoint, episodes)
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
    with contextlib.suppress(ValueError):  # raised for a module without a spec
        return importlib.util.find_spec(name) is not None
    return False


def _refuse_foreign(card: Path, *others: Path) -> None:
    """Raise an error if files in the folder are not from an export: a README.md of a project must not be overwritten."""
    for path in (card, *others):
        if path.exists() and not is_card(card):
            raise ProxRLError(f"{path} was not written by 'proxrl export'; give another folder by --out")


def public_settings(folder: RunFolder) -> str:
    """Return the text of the run's settings without the private ones, and with the name of the run that it started from."""
    settings = {name: value for name, value in folder.settings().items() if name not in PRIVATE}
    if settings.get("init_from", OFF) != OFF:
        settings["init_from"] = public_origin(folder, settings["init_from"])
    return "".join(f"{name} = {toml_value(value)}\n" for name, value in settings.items())


def deploy(agent: Agent) -> Deployed:
    """Return the policy to export.

    It is a copy, because the agent's parameters are views of one buffer, and a file would contain all of it for each view.
    """
    policy = make_policy(agent.config, agent.observation_space, agent.action_space)
    add_value_streams(policy, agent.policy.value_streams, agent.config.seed)
    policy.load_state_dict(agent.policy.state_dict())
    return Deployed(policy.requires_grad_(False), agent.config, agent.observation_space, agent.action_space).eval()


def trace(agent: Agent, deployed: Deployed, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    """Return the policy as a graph for any number of rows."""
    reason: Exception | None = None
    # Strict mode analyzes the code of `forward` and accepts some code that the other mode can't, such as len() of a tensor.
    for strict in (False, True):
        try:
            with quiet(), torch.no_grad():
                program = torch.export.export(deployed, inputs, dynamic_shapes=any_rows(len(inputs)), strict=strict)
        except Exception as error:
            reason = reason or error
            continue
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # it contains paths of this machine
        return program
    assert reason is not None
    plugins = [name for name in ("encoder", "policy", "value") if ":" in (getattr(agent.config, name) or "")]
    what = " or ".join(f"{flag(name)} {getattr(agent.config, name)}" for name in plugins) or "this policy"
    raise ProxRLError(f"torch.export can't read {what}: {one_line(reason)}") from reason


def describe(agent: Agent, deployed: Deployed, checkpoint: str, preparation: dict[str, Any]) -> dict[str, str]:
    """Return the metadata that the file contains."""
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
    """Return `dynamic_shapes` for inputs that all have the same number of rows, which may be any."""
    rows = torch.export.Dim("batch", min=1)
    return (tuple({0: rows} for _ in range(inputs)),)


def write_and_read(
    program: ExportedProgram, format: str, outputs: list[str], facts: dict[str, str], path: Path
) -> Callable[[Arrays], Arrays]:
    """Write the file, read it back, and return it as a function."""
    try:
        if format == "pt2":
            write_pt2(program, facts, path)
            return read_pt2(path)
        write_onnx(program, json.loads(facts["inputs"]), outputs, facts, path)
        return read_onnx(path)
    except (ProxRLError, OSError):
        raise
    except Exception as error:  # such as an operation that the format or its runtime does not have
        raise ProxRLError(f"this policy can't be written as {format}: {one_line(error)}") from error


def write_onnx(program: ExportedProgram, inputs: list[str], outputs: list[str], facts: dict[str, str], path: Path) -> None:
    import onnx

    size = sum(tensor.nbytes for tensor in program.state_dict.values())
    if size > MOST_ONNX_BYTES:
        raise ProxRLError(f"the policy has {size:,} bytes, and an ONNX file holds 2 GB at most; use --format pt2")
    with quiet():
        program_onnx = torch.onnx.export(
            program,
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=any_rows(len(inputs)),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
        assert program_onnx is not None
        for node in program_onnx.model.graph.all_nodes():
            node.metadata_props.clear()  # source locations
        program_onnx.model.metadata_props.clear()
        program_onnx.model.metadata_props.update(facts)
        program_onnx.save(path, external_data=False)
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
    """Hide the warnings of torch's exporters, which are about their own code."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def checkpoint_scores(folder: RunFolder, agent: Agent, checkpoint: str, episodes: int) -> dict[str, Any]:
    """Return summaries by kind: the saved ones if they are of this step, else of a new evaluation; none without episodes."""
    saved = current_evaluation(folder, checkpoint)
    if saved is not None:
        return {kind: saved[kind] for kind in ("deterministic", "stochastic")}
    if episodes == 0:
        return {}
    try:
        scores = evaluate_and_save(folder, agent, episodes, checkpoint=checkpoint)
    except ProxRLError as error:
        raise ProxRLError(f"nothing was written, because the evaluation failed: {error}; --episodes 0 skips it") from error
    return {kind: score.summary() for kind, score in scores.items()}
