"""An exported file has the outputs of its policy for all kinds of spaces and networks, and its model card is correct."""

import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import yaml
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

import proxrl
import proxrl.export
from any_space import random_mask
from plugins import TwoRooms
from proxrl.cli import main
from proxrl.common.tree import tree_map
from proxrl.config import Config
from proxrl.config.parse import parse_settings, read_toml, save_toml
from proxrl.envs.masks import total_choices
from proxrl.envs.spaces import Masked, space_to_json, space_tree
from proxrl.errors import ProxRLError
from proxrl.export import exporter, verify
from proxrl.export.card import front_matter, observation_preparation
from proxrl.export.exporter import export_policy
from proxrl.export.verify import largest_difference
from proxrl.policy.networks import make_policy
from proxrl.policy.statistics import RunningMoments
from proxrl.runs import checkpoint
from proxrl.runs.evaluations import read_evaluations
from proxrl.runs.folder import RunFolder
from proxrl.runs.lookup import find_runs

F = np.float32
VECTOR = spaces.Box(-2, 2, (3,), F)
HYBRID = spaces.Dict(
    {
        "lever": spaces.Discrete(3, start=1, dtype=np.int32),
        "a.b": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 4, (2,), F)]),
        "bits": spaces.MultiBinary(2),
    }
)
EVERYTHING = spaces.Dict(
    {
        "numbers": spaces.Box(-np.inf, np.inf, (2, 2), F),
        "bytes": spaces.Box(0, 255, (2,), np.uint8),
        "kind": spaces.Discrete(4, start=-2),
        "nested": spaces.Tuple([spaces.MultiDiscrete([2, 3], start=[1, -1], dtype=np.int32), spaces.MultiBinary(3)]),
        "picture": spaces.Box(0, 255, (9, 11, 3), np.uint8),
    }
)

STARTED = spaces.Tuple([VECTOR, spaces.Discrete(2, start=7), spaces.MultiDiscrete([2, 2], start=[3, 4])])

# name → observation space, action space, settings
CASES: dict[str, tuple[gymnasium.Space, gymnasium.Space, dict[str, Any]]] = {
    "beta": (VECTOR, spaces.Box(-1, 3, (2, 2), np.float64), {"action_distribution": "beta"}),
    "multidiscrete": (VECTOR, spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[0, 1], [-1, 5]], dtype=np.int32), {}),
    "dict": (EVERYTHING, spaces.Discrete(4, start=3), {"normalize_observations": True, "activation": "relu"}),
    "masked-hybrid": (Masked(STARTED, total_choices(HYBRID)), HYBRID, {}),
    "nature": (spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6), {}),
    "impala-tanh": (
        spaces.Box(0, 255, (12, 12, 3), np.uint8),
        spaces.Box(np.array([-1, 0], F), np.array([1, 50], F)),
        {"encoder": "impala", "action_distribution": "tanh", "std": "state"},
    ),
    "planes": (spaces.Box(0, 255, (9, 9, 17), np.uint8), spaces.Discrete(3), {"image_channels": "last"}),
    "asymmetric-bits": (TwoRooms.observation_space, spaces.MultiBinary((2, 2)), {"actor_keys": ("room", "hint")}),
    "split-dict": (
        EVERYTHING,
        spaces.Discrete(2),
        {"encoder": "split", "encoder_kwargs": {"far": "picture,numbers", "near": ["nested/0"]}, "normalize_observations": True},
    ),
    "plugin": (VECTOR, spaces.Discrete(2), {"encoder": "plugins:Counting"}),
    "lstm": (
        Masked(STARTED, total_choices(HYBRID)),
        HYBRID,
        {"memory": "lstm", "memory_size": 6, "memory_layers": 2, "normalize_observations": True},
    ),
    "gru": (spaces.Box(0, 255, (9, 9, 3), np.uint8), spaces.Box(-1, 1, (2,), F), {"memory": "gru", "memory_size": 5}),
    "gpu": (VECTOR, spaces.Discrete(2), {"device": "cuda", "precision": "bfloat16", "compile": True}),
    "unreadable": (VECTOR, spaces.Discrete(2), {"encoder": "plugins:Unreadable"}),
}


def make_run(folder: Path, name: str) -> Path:
    """Write the folder of a run without training, with random weights and statistics, and return it."""
    observation_space, action_space, changes = CASES[name]
    config = Config(env=f"{name}:env", hidden_sizes=(16,), **changes)
    torch.manual_seed(0)
    policy = make_policy(config, observation_space, action_space)
    with torch.no_grad():
        for parameter in (*policy.action.parameters(), *policy.head.parameters(), *policy.memory.parameters()):
            parameter.add_(torch.randn_like(parameter) * 0.3)
        for module in policy.modules():
            if isinstance(module, RunningMoments):
                module.mean.normal_()
                module.variance.uniform_(0.1, 3)
    folder.mkdir(parents=True)
    save_toml(config, folder / "config.toml")
    tensors = {f"policy.{name}": tensor for name, tensor in policy.state_dict().items()}
    state = {"step": 512, "observation_space": space_to_json(observation_space), "action_space": space_to_json(action_space)}
    checkpoint.save(folder / "checkpoints" / "latest.safetensors", tensors, state)
    RunFolder(folder).config_for(trust=True)  # its settings name code, and no training has stamped it
    return folder


def sampled(space: gymnasium.Space, rows: int) -> Any:
    """Return random elements of a space as a batch."""
    space.seed(rows)
    elements = [space.sample() for _ in range(rows)]
    return concatenate(space, elements, create_empty_array(space, rows))


def named(tree: Any, prefix: str) -> dict[str, Any]:
    """Return leaves by the names that docs/export.md describes."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, tuple) else None
    if items is None:
        return {prefix: tree}
    return {name: leaf for key, part in items for name, leaf in named(part, f"{prefix}.{key}").items()}


def outputs_of(path: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    if path.suffix == ".pt2":
        extra = {"proxrl.json": ""}
        module = torch.export.load(path, extra_files=extra).module()
        order = json.loads(json.loads(extra["proxrl.json"])["inputs"])
        return {name: value.numpy() for name, value in module(*(torch.from_numpy(inputs[name]) for name in order)).items()}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert {one.name for one in session.get_inputs()} == set(inputs)
    return dict(zip((output.name for output in session.get_outputs()), session.run(None, inputs), strict=True))


def assert_same_outputs(run: Path, path: Path, obs: Any, mask: Any = None) -> dict[str, Any]:
    """Check that the file's actions are those of `load(run).act`: to 1e-5 of the range, and exactly for discrete actions."""
    agent = proxrl.load(run)
    outputs = outputs_of(path, named(obs, "observation") | ({} if mask is None else {"action_mask": mask}))
    expected = named(agent.act(obs, mask=mask), "action")
    assert {name for name in outputs if name.startswith("action")} == set(expected)
    leaves = named(space_tree(agent.action_space), "action")
    for name, action in expected.items():
        assert outputs[name].dtype == action.dtype
        assert outputs[name].shape == action.shape
        if isinstance(leaves[name], spaces.Box):
            assert np.max(np.abs(outputs[name] - action) / (leaves[name].high - leaves[name].low)) < 1e-5
        else:
            np.testing.assert_array_equal(outputs[name], action)
    return outputs


ONNX_CASES = [(name, "onnx") for name in CASES if name not in ("gpu", "unreadable", "lstm", "gru")]


@pytest.mark.parametrize(("name", "format"), [*ONNX_CASES, ("masked-hybrid", "pt2")])
def test_the_file_has_the_outputs_of_the_policy(tmp_path: Path, name: str, format: str) -> None:
    run = make_run(tmp_path / "run", name)
    exported = export_policy(run, format=format, episodes=0)
    assert exported.difference < 1e-5
    assert exported.path == run / "export" / f"policy.{format}"
    observation_space, action_space, changes = CASES[name]
    masked = isinstance(observation_space, Masked)
    for rows in (1, 50):
        obs = sampled(observation_space["observation"] if masked else observation_space, rows)  # type: ignore[index]
        if "actor_keys" in changes:
            obs = {key: obs[key] for key in changes["actor_keys"]}
        mask = random_mask(action_space, np.random.default_rng(rows), rows) if masked else None
        outputs = assert_same_outputs(run, exported.path, obs, mask)
    actions = {output: value for output, value in outputs.items() if output.startswith("action")}
    assert all(len(np.unique(value, axis=0)) > 1 for value in actions.values()), "constant outputs would test nothing"
    # The keys of the critic are no inputs, so there is no value.
    assert ("value" in outputs) == (name != "asymmetric-bits")
    card = exported.card.read_text()
    assert "model-index" not in card
    assert run_program(card, exported.path.parent)[0].startswith("action")
    assert all(f"`{output}` |" in card for output in outputs)


@pytest.mark.parametrize(("name", "format"), [("lstm", "onnx"), ("gru", "pt2")])
def test_the_file_of_a_policy_with_a_memory(tmp_path: Path, name: str, format: str) -> None:
    """Over steps that follow each other, in which episodes begin at different times."""
    run = make_run(tmp_path / "run", name)
    exported = export_policy(run, format=format, episodes=0)
    assert exported.difference < 1e-5
    observation_space, action_space, _ = CASES[name]
    masked = isinstance(observation_space, Masked)
    agent, rng = proxrl.load(run), np.random.default_rng(0)
    shapes = {f"state.{n}": (5, 2, 6) for n in range(4)} if name == "lstm" else {"state.0": (5, 1, 5)}
    state = {one: np.zeros(shape, F) for one, shape in shapes.items()}
    run_file = exporter.read_onnx(exported.path) if format == "onnx" else exporter.read_pt2(exported.path)
    taken = set()
    for step in range(8):
        space: Any = observation_space["observation"] if masked else observation_space  # type: ignore[index]
        obs = sampled(space, 5 + step)
        obs = tree_map(lambda leaf: leaf[-5:], obs)
        mask = random_mask(action_space, rng, 5) if masked else None
        inputs = named(obs, "observation") | ({} if mask is None else {"action_mask": mask})
        outputs = run_file(inputs | state)
        for output, action in named(agent.act(obs, mask=mask), "action").items():
            np.testing.assert_allclose(outputs[output], action, atol=1e-5)
            taken.add((output, action.tobytes()))
        begun = rng.random(5) < 0.3
        agent.reset(begun)
        state = {one: np.where(begun[:, None, None], F(0), outputs[f"next_{one}"]) for one in state}
    assert len(taken) > 4, "constant outputs would test nothing"
    card = exported.card.read_text()
    assert "The policy has a memory. In the first step of an episode, its state is zeros" in card
    assert run_program(card, exported.path.parent)[0].startswith("action")


def test_a_memory_that_the_file_does_not_keep_is_a_difference(tmp_path: Path) -> None:
    agent = proxrl.load(make_run(tmp_path / "run", "gru"))
    deployed = exporter.deploy(agent)

    def run_file(inputs: dict[str, Any]) -> dict[str, Any]:
        return {name: value.numpy() for name, value in deployed(*map(torch.from_numpy, inputs.values())).items()}

    def forgetful(inputs: dict[str, Any]) -> dict[str, Any]:
        outputs = run_file(inputs)
        return outputs | {"next_state.0": np.zeros_like(outputs["next_state.0"])}

    assert largest_difference(agent, deployed, run_file) < 1e-5
    assert largest_difference(agent, deployed, forgetful) > 1e-2


def run_program(card: str, folder: Path) -> list[str]:
    """Run the program of a card and return the lines that it prints."""
    program = re.search(r"```python\n(.*?)```", card, re.S)
    assert program is not None
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as out:
        exec(program[1], {})
    return out.getvalue().splitlines()


def play(env: gymnasium.Env, agent: proxrl.Agent, steps: int) -> Any:
    """Return the observations of episodes that the agent plays."""
    obs, _ = env.reset(seed=0)
    rows = [obs]
    for _ in range(steps - 1):
        obs, _, terminated, truncated, _ = env.step(agent.act(obs))
        if terminated or truncated:
            obs, _ = env.reset()
        rows.append(obs)
    return np.stack(rows)


SMALL = {"num_envs": 2, "rollout_steps": 64, "num_minibatches": 2, "epochs": 2, "total_steps": 512, "quiet": True}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    common = {"runs_dir": folder, "tensorboard": False, **SMALL}
    proxrl.train("CartPole-v1", **common)
    proxrl.train("Pendulum-v1", normalize_observations=True, std="independent", **common)
    return folder


def test_the_file_of_a_trained_gaussian_with_whitened_observations(runs: Path, tmp_path: Path) -> None:
    run = next(iter((runs / "Pendulum-v1").glob("*/seed1")))
    exported = export_policy(run, out=tmp_path / "pendulum", episodes=0)
    agent = proxrl.load(run)
    assert agent.policy.preprocess.moments.count > 0
    outputs = assert_same_outputs(run, exported.path, play(gymnasium.make("Pendulum-v1"), agent, 60))
    np.testing.assert_allclose(outputs["action"], outputs["mean"].clip(-2, 2))
    np.testing.assert_allclose(outputs["log_std"], np.tile(agent.policy.head.log_std.detach(), (60, 1)))


def test_the_command_writes_a_whole_folder(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = next(iter((runs / "CartPole-v1").glob("*/seed1")))
    assert main(["export", str(run), "--episodes", "4"]) == 0
    printed = capsys.readouterr()
    message = re.search(r"Wrote \S+policy.onnx of step 512; it differs from the policy by (\S+) at most", printed.out)
    assert message is not None
    assert float(message[1]) < 1e-5
    assert printed.err == ""
    folder = run / "export"
    assert {path.name for path in folder.iterdir()} == {"policy.onnx", "README.md", "settings.toml"}
    assert parse_settings(read_toml(folder / "settings.toml")) == RunFolder(run).config()
    assert len(find_runs([runs])) == 2  # the copy of the settings does not count as a run

    agent = proxrl.load(run)
    obs = play(gymnasium.make("CartPole-v1"), agent, 60)
    outputs = assert_same_outputs(run, folder / "policy.onnx", obs)
    distribution, value, _ = agent.policy(torch.from_numpy(obs), (), None)
    np.testing.assert_allclose(outputs["logits"], distribution.log_probs.detach(), atol=1e-5)
    np.testing.assert_allclose(outputs["value"], value.detach()[:, 0], atol=1e-5)

    model = onnx.load(folder / "policy.onnx")
    facts = {entry.key: entry.value for entry in model.metadata_props}
    assert facts["environment"] == "CartPole-v1"
    assert facts["step"] == "512"
    assert json.loads(facts["action_space"])["n"] == 2
    assert json.loads(facts["observation_space"])["shape"] == [4]
    assert [entry.version for entry in model.opset_import if entry.domain == ""] == [exporter.OPSET]
    assert b".py" not in (folder / "policy.onnx").read_bytes()  # no source locations

    card = (folder / "README.md").read_text()
    (printed_action,) = run_program(card, folder)
    assert printed_action == f"action {agent.act(np.zeros(4))}"
    scores = read_evaluations(RunFolder(run))["latest"]["deterministic"]
    assert scores["episodes"] == 4
    head = yaml.safe_load(card.split("---")[1])
    assert head["library_name"] == "proxrl"
    assert {"reinforcement-learning", "ppo", "CartPole-v1"} <= set(head["tags"])
    (result,) = head["model-index"][0]["results"]
    assert result["dataset"] == {"name": "CartPole-v1", "type": "CartPole-v1"}
    assert result["metrics"][0]["value"] == f"{scores['mean']:.2f} +/- {scores['std']:.2f}"
    assert "490.04" in card  # a published score
    assert "`total_steps` | `512`" in card


@pytest.mark.parametrize("env", ["ALE/Pong-v5", 'odd: "name" #1', "{a: b}", "- x\n- y", "\u2028 é \U0001f600 \x7f\x85", "yes"])
def test_front_matter_is_yaml_for_all_names_of_environments(env: str) -> None:
    head = yaml.safe_load(front_matter(env, {"deterministic": {"mean": 475.0, "std": 12.3}}).strip("-"))
    assert head["tags"][-1] == env
    assert head["model-index"][0]["results"][0]["dataset"]["type"] == env
    assert head["model-index"][0]["results"][0]["metrics"][0]["value"] == "475.00 +/- 12.30"


def test_bad_requests_are_errors_of_one_line_and_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", "plugin")
    with pytest.raises(ProxRLError, match="--format tflite: there is no such format; use onnx or pt2"):
        export_policy(run, format="tflite")
    with pytest.raises(ProxRLError, match="--episodes is -1"):
        export_policy(run, episodes=-1)
    with pytest.raises(ProxRLError, match="has no checkpoint 'best'; it has latest"):
        export_policy(run, checkpoint="best")
    with pytest.raises(ProxRLError, match="no run at"):
        export_policy(tmp_path / "nothing")
    (tmp_path / "README.md").write_text("# Mine\n")
    with pytest.raises(ProxRLError, match="was not written by 'proxrl export'"):
        export_policy(run, out=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ProxRLError, match="can't write to"):
        export_policy(run, out=tmp_path / "file" / "below", format="pt2")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ProxRLError, match=re.escape("needs onnxruntime: pip install 'proxrl[export]'")):
        export_policy(run)
    assert (tmp_path / "README.md").read_text() == "# Mine\n"
    assert not (run / "export").exists()


def test_a_file_that_differs_from_its_policy_is_discarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", "plugin")
    first = export_policy(run, format="pt2", episodes=0)
    before = first.path.read_bytes()
    original = exporter.deploy

    def broken(agent: proxrl.Agent) -> Any:
        deployed = original(agent)
        with torch.no_grad():
            deployed.policy.action.bias.add_(torch.tensor([1.0, 0.0]))
        return deployed

    monkeypatch.setattr(exporter, "deploy", broken)
    with pytest.raises(ProxRLError, match=r"the pt2 file differs from the policy by \d"):
        export_policy(run, format="pt2", episodes=0)
    assert first.path.read_bytes() == before
    assert {path.name for path in first.path.parent.iterdir()} == {"policy.pt2", "README.md", "settings.toml"}


def test_the_error_names_the_network_that_torch_cannot_export(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "unreadable")
    with pytest.raises(ProxRLError, match=r"torch\.export can't read --encoder plugins:Unreadable: ") as caught:
        export_policy(run, episodes=0)
    assert "\n" not in str(caught.value)
    assert not (run / "export" / "policy.onnx").exists()


def test_nothing_is_replaced_if_the_evaluation_fails(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "gpu")  # trained on another machine, with an environment that is missing here
    with pytest.raises(ProxRLError, match=r"nothing was written, because the evaluation failed: .*--episodes 0"):
        export_policy(run, format="pt2")
    assert list((run / "export").iterdir()) == []
    export_policy(run, format="pt2", episodes=0)
    before = {path: path.read_bytes() for path in (run / "export").iterdir()}
    save_toml(RunFolder(run).config().replace(gamma=0.5), run / "config.toml")
    with pytest.raises(ProxRLError, match="nothing was written"):
        export_policy(run, format="pt2")
    assert {path: path.read_bytes() for path in (run / "export").iterdir()} == before


@pytest.mark.parametrize("name", ["settings.toml", "policy.pt2", "README.md"])
def test_files_that_no_export_wrote_are_not_replaced(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path / "run", "plugin")
    (tmp_path / name).write_text("mine")
    with pytest.raises(ProxRLError, match=rf"{name} was not written by 'proxrl export'; give another folder by --out"):
        export_policy(run, format="pt2", out=tmp_path, episodes=0)
    assert {path.name for path in tmp_path.iterdir()} == {"run", name}
    assert (tmp_path / name).read_text() == "mine"


def test_nan_is_a_difference(tmp_path: Path) -> None:
    agent = proxrl.load(make_run(tmp_path / "run", "plugin"))
    deployed = exporter.deploy(agent)

    def run_file(inputs: dict[str, Any]) -> dict[str, Any]:
        return {name: value.numpy() for name, value in deployed(*map(torch.from_numpy, inputs.values())).items()}

    def run_file_with_nan(inputs: dict[str, Any]) -> dict[str, Any]:
        outputs = run_file(inputs)
        outputs["value"][-1] = np.nan
        return outputs

    assert largest_difference(agent, deployed, run_file) < 1e-5
    assert np.isnan(largest_difference(agent, deployed, run_file_with_nan))


def test_equal_infinities_do_not_differ() -> None:
    masked = np.array([[0.0, -np.inf]], F)
    assert verify._distance(masked, masked.copy()) == 0
    assert verify._distance(masked, -masked) == np.inf


def test_settings_of_loggers_and_callbacks_are_not_published(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "plugin")
    changes = {"logger": "my_logs:Remote", "logger_kwargs": {"api_key": "s3cret"}}
    changes |= {"callback": "my_calls:Post", "callback_kwargs": {"token": "s3cret"}}
    save_toml(RunFolder(run).config().replace(**changes), run / "config.toml")
    exported = export_policy(run, format="pt2", episodes=0, trust=True)
    for path in exported.path.parent.iterdir():
        assert not re.search(rb"s3cret|api_key|my_logs|my_calls", path.read_bytes()), path.name
    published = parse_settings(read_toml(exported.path.parent / "settings.toml"))
    assert published == RunFolder(run).config().replace(logger=None, logger_kwargs={}, callback=None, callback_kwargs={})
    assert "`hidden_sizes` |" in exported.card.read_text()


def test_the_card_describes_the_preprocessing_of_observations(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "nature")
    config = RunFolder(run).config().replace(env="ALE/Pong-v5", frame_skip=5, noop_max=7)
    save_toml(config, run / "config.toml")
    exported = export_policy(run, format="pt2", episodes=0)
    extra = {"proxrl.json": ""}
    torch.export.load(exported.path, extra_files=extra)
    preparation = json.loads(json.loads(extra["proxrl.json"])["observation_preparation"])
    expected = {"frame_skip": 5, "noop_max": 7, "frame_stack": 4, "grayscale": True, "screen_size": 84, "fire_reset": True}
    assert preparation | expected == preparation
    card = exported.card.read_text()
    assert "observations prepared as described below" in card
    assert "the newest last" in card
    assert all(f"| `{name}` | `{json.dumps(value)}` |" in card for name, value in preparation.items())
    assert observation_preparation(Config(env="CartPole-v1")) == {}
    assert observation_preparation(Config(env="not_here:env")) == {}
    assert observation_preparation(Config(env="dm_control/cheetah-run-v0")) == {"flatten": "in the order of the keys"}


def test_clobber_removes_the_export(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "plugin")
    export_policy(run, format="pt2", episodes=0)
    (run / "export" / "notes.txt").write_text("mine")
    with RunFolder(run) as folder:
        folder.create(folder.config(), clobber=True)
    assert [path.name for path in (run / "export").iterdir()] == ["notes.txt"]


def test_clobber_keeps_a_folder_named_export_that_no_export_wrote(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "plugin")
    (run / "export").mkdir()
    for name in ("README.md", "settings.toml", "policy.onnx"):
        (run / "export" / name).write_text("mine")
    with RunFolder(run) as folder:
        folder.create(folder.config(), clobber=True)
    assert {path.name for path in (run / "export").iterdir()} == {"README.md", "settings.toml", "policy.onnx"}


def test_the_import_that_the_documentation_names() -> None:
    assert proxrl.export.export_policy is export_policy
