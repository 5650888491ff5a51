"""A user's own loss terms, bonuses and advantage estimators: what they compute, that they are saved, and their errors."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import proxrl
from commands import assert_same_checkpoint, metrics, run, saved
from harness import NEVER, NextStepEnvs, assemble, collect, run_ranks, scripted, train
from learners import Apart, Auxiliary, doubled
from proxrl import ppo
from proxrl.bonus.api import state_tensors
from proxrl.cli import main
from proxrl.config import Config
from proxrl.engine.autograd import TorchCompute
from proxrl.engine.numpy_mlp import NumpyCompute
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.errors import ProxRLError
from ranks import run_ranks_by

BOX = spaces.Box(-1, 1, (2,), np.float32)
SCRIPTS = (((3, "terminated"), (2, "truncated")), ((4, "truncated"),), (NEVER,), ((1, "terminated"), (6, "truncated")))
TINY: dict[str, Any] = {
    "num_envs": 2, "rollout_steps": 16, "num_minibatches": 2, "epochs": 2, "total_steps": 96, "hidden_sizes": (8,),
    "vector": "inprocess", "tensorboard": False, "quiet": True,
}  # fmt: skip
FLAGS = ("--num-envs", "2", "--rollout-steps", "16", "--num-minibatches", "2", "--epochs", "2", "--hidden-sizes", "8")
FLAGS += ("--total-steps", "96", "--vector", "inprocess", "--no-tensorboard")


@pytest.fixture(autouse=True)
def work_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def learner_config(*words: str, **changes: Any) -> Config:
    settings = {"num_envs": 4, "rollout_steps": 6, "num_minibatches": 4, "hidden_sizes": (8,), "total_steps": 72}
    return Config(**{**settings, "learner": words, **changes}).validate()


def first_minibatch(config: Config) -> Any:
    """Return the parts of a run, and its first minibatch."""
    parts = assemble(config, InProcessEnvs(scripted(SCRIPTS, BOX)))
    batch = ppo.advantage(parts, collect(parts), config.at(0))
    minibatch = next(parts.minibatches.draw(batch, ppo.random_streams(parts, 0), 1))
    return parts, minibatch


# --- what they compute --------------------------------------------------------------------------------------------------------


def test_the_gradient_of_a_term_is_added_to_that_of_ppo_without_being_written_out() -> None:
    with_term, minibatch = first_minibatch(learner_config("learners:Auxiliary", "coef=0.7"))
    without, other = first_minibatch(learner_config(compute="autograd"))
    phase, now = with_term.config.phases(0)[0], with_term.config.at(0)
    minibatch.advantage, minibatch.target = other.advantage, other.target  # the learner also pays a bonus
    terms = with_term.descent.differentiate(minibatch, ppo.loss, now, phase)
    without.descent.differentiate(other, ppo.loss, now, phase)
    learner = with_term.learners[0]
    assert isinstance(learner, Auxiliary)
    policy = with_term.policy
    error = learner.layer(policy.actor(minibatch.obs)).squeeze(1) - learner.rewards[minibatch.rows]
    expected = 0.7 * (minibatch.weight * error**2).sum()
    assert float(terms[-2]) == pytest.approx(expected.item(), rel=1e-5)
    parameters = [*policy.actor.parameters(), *learner.layer.parameters()]
    added = torch.autograd.grad(expected, parameters)
    plain = {name: parameter.grad for name, parameter in without.policy.named_parameters()}
    names = [f"actor.{name}" for name, _ in policy.actor.named_parameters()]
    for name, parameter, gradient in zip([*names, None, None], parameters, added, strict=True):
        assert gradient.abs().max() > 1e-4
        assert torch.allclose(parameter.grad, gradient + (0 if name is None else plain[name]), atol=1e-6)
    assert torch.allclose(policy.critic.layers[0].weight.grad, without.policy.critic.layers[0].weight.grad, atol=1e-6)


def test_rewards_are_added_to_those_of_the_environment_or_to_a_stream_of_their_own() -> None:
    config = learner_config("learners:Auxiliary", "learners:OwnStream")
    parts = assemble(config, InProcessEnvs(scripted(SCRIPTS, BOX)))
    rollout = collect(parts)
    reward = ppo.rewards(parts, rollout, config.at(0), 2)
    np.testing.assert_allclose(reward[..., 0], rollout.reward + 0.1 * np.tanh(rollout.obs[:-1, :, 0]) ** 2, rtol=1e-6)
    assert (reward[..., 1] == 0.25).all()
    batch = ppo.advantage(parts, rollout, config.at(0))
    assert batch.value.shape == batch.target.shape == (24, 2)


@pytest.mark.parametrize("compute", ["numpy", "autograd"])
def test_a_learner_that_does_not_see_features_leaves_the_engine_as_it_is(compute: str) -> None:
    parts = assemble(learner_config("learners:Apart", compute=compute, learning_rate=0.1), InProcessEnvs(scripted(SCRIPTS, BOX)))
    plain = assemble(
        learner_config(compute=compute, learning_rate=0.1, max_grad_norm=None), InProcessEnvs(scripted(SCRIPTS, BOX))
    )
    assert isinstance(parts.compute, NumpyCompute if compute == "numpy" else TorchCompute)
    session = train(parts)
    assert isinstance(parts.learners[0], Apart)
    assert parts.learners[0].weight.item() > 0.1
    terms = session.metrics[0]
    assert terms["losses/again"] == pytest.approx(terms["losses/apart"] / 2)
    assert train(plain).metrics[0].keys() == terms.keys() - {"losses/apart", "losses/again"}


def test_features_need_autograd() -> None:
    parts = assemble(learner_config("learners:Auxiliary"), InProcessEnvs(scripted(SCRIPTS, BOX)))
    assert isinstance(parts.compute, TorchCompute)
    with pytest.raises(ProxRLError, match=r"--compute numpy is for .* learner that sees features"):
        assemble(learner_config("learners:Auxiliary", compute="numpy"), InProcessEnvs(scripted(SCRIPTS, BOX)))


@pytest.mark.parametrize(
    "changes", [{"memory": "lstm", "memory_size": 6, "num_minibatches": 2}, {"accumulate": 3}, {"value_epochs": 1}]
)
def test_features_of_memories_microbatches_and_separate_phases(changes: dict[str, Any]) -> None:
    parts = assemble(learner_config("learners:Auxiliary", **changes), NextStepEnvs(scripted(SCRIPTS, BOX)))
    before = parts.learners[0].layer.weight.detach().clone()
    first, *_, last = train(parts).metrics
    assert (parts.learners[0].layer.weight - before).abs().max() > 1e-4
    assert np.isfinite(last["losses/auxiliary"])
    assert last["bonus/seen"] > first["bonus/seen"] > 0


class HoldsThePolicy(proxrl.Learner):
    terms = ("penalty",)
    sees_features = True

    def __init__(self, setup: Any) -> None:
        super().__init__()
        self.policy = setup.policy

    def loss(self, batch: Any, features: Any) -> dict[str, torch.Tensor]:
        return {"penalty": batch.mean(self.policy.actor(batch.obs).square().sum(1))}


def test_a_learner_may_hold_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learners.Apart", HoldsThePolicy)
    parts, minibatch = first_minibatch(learner_config("learners:Apart"))
    plain, other = first_minibatch(learner_config(compute="autograd"))
    assert parts.parameters.values.shape == plain.parameters.values.shape
    for each, batch in ((parts, minibatch), (plain, other)):
        each.descent.differentiate(batch, ppo.loss, each.config.at(0), each.config.phases(0)[0])
    weight = parts.policy.actor.layers[0].weight
    (penalty,) = torch.autograd.grad(parts.learners[0].loss(minibatch, None)["penalty"], [weight])
    assert penalty.abs().max() > 1e-3
    assert torch.allclose(weight.grad, plain.policy.actor.layers[0].weight.grad + penalty, atol=1e-6)


def test_the_example_of_a_loss_is_for_box_and_discrete_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    config = learner_config("own_loss:RewardPrediction")
    for space, size in ((BOX, 2), (spaces.Discrete(3, start=1), 3)):
        parts = assemble(config, InProcessEnvs(scripted(SCRIPTS, space)))
        train(parts)
        assert parts.learners[0].layer.in_features == 8 + size
    with pytest.raises(ProxRLError, match="this example is for Box and Discrete actions, not for MultiBinary"):
        assemble(config, InProcessEnvs(scripted(SCRIPTS, spaces.MultiBinary(2))))


def test_a_learner_that_holds_the_value_layer_sees_the_streams_that_others_add() -> None:
    parts, _ = first_minibatch(learner_config("learners:HoldsTheValue", "learners:OwnStream"))
    plain, _ = first_minibatch(learner_config("learners:OwnStream"))
    assert parts.learners[0].value is parts.policy.value
    assert parts.policy.value.out_features == parts.policy.value_streams == 2
    assert parts.policy.value(torch.zeros(3, 8)).shape == (3, 2)
    assert len(parts.parameters.values) == len(plain.parameters.values)  # nothing is trained twice


# --- the advantage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compute", ["numpy", "autograd"])
def test_an_estimator_replaces_generalized_advantage_estimation(compute: str) -> None:
    batches = []
    for words in (None, ("learners:doubled", "factor=3")):
        parts = assemble(learner_config(compute=compute, advantage=words), InProcessEnvs(scripted(SCRIPTS, BOX)))
        batches.append(ppo.advantage(parts, collect(parts), parts.config.at(0)))
    expected, batch = batches
    assert np.allclose(batch.advantage, 3 * expected.advantage, atol=1e-5)
    assert np.allclose(batch.value, expected.value)  # although the estimator writes to its arguments
    assert batch.advantage.dtype == expected.advantage.dtype
    assert np.allclose(batch.target, 3 * expected.advantage[:, None] + expected.value, atol=1e-5)


@pytest.mark.parametrize("library", [np, torch])
def test_the_example_of_an_estimator_has_known_limits(library: Any) -> None:
    """With n = 1 it is GAE with lambda = 0, with a large n the one with lambda = 1: also where rows are skipped."""
    rng = np.random.default_rng(0)
    reward, last = rng.normal(size=(2, 9, 4)).astype(np.float32)
    value = rng.normal(size=(10, 4)).astype(np.float32)
    valid = (rng.random((9, 4)) > 0.2).astype(np.float32)
    terminated = (rng.random((9, 4)) < 0.2).astype(np.float32)
    ends = np.maximum(terminated, rng.random((9, 4)) < 0.2).astype(np.float32)
    ends[-1] = 1
    next_value = np.where(ends, last, ppo.following(np, value, np.concatenate([valid, valid[:1]])))
    columns = [library.asarray(column) for column in (reward, value[:-1], next_value, terminated, ends)]
    spec = importlib.util.spec_from_file_location("own_advantage", Path(__file__).parents[2] / "examples/own_advantage.py")
    assert spec is not None
    example = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(example)
    for n, gae_lambda in ((1, 0.0), (9, 1.0)):
        expected = ppo.gae(*columns, 0.9, gae_lambda, library.asarray(valid))
        found = example.n_step(*columns, 0.9, 0.5, library.asarray(valid), n=n)
        counted = valid > 0
        assert np.allclose(np.asarray(found)[counted], np.asarray(expected)[counted], atol=1e-5), n


# --- runs ---------------------------------------------------------------------------------------------------------------------


def test_ranks_learn_what_one_does() -> None:
    config = learner_config("learners:Auxiliary", "learners:Apart", advantage=("learners:doubled",))

    def trained(world: Any) -> Any:
        each = 4 // world.size
        first = world.rank * each
        makers = scripted(SCRIPTS[first : first + each], BOX, first)
        parts = assemble(config, NextStepEnvs(makers, first_env=first), world, first)
        session = train(parts)
        return {"all": parts.parameters.values, **state_tensors(parts.learners)}, session.metrics

    ((expected, lines),) = run_ranks(1, trained)
    for size in (2, 4):
        ranks = run_ranks(size, trained)
        for tensors, rank_lines in ranks:
            for name, tensor in tensors.items():
                assert torch.allclose(tensor.double(), expected[name].double(), rtol=1e-4, atol=1e-5), (size, name)
                assert torch.equal(tensor, ranks[0][0][name]), (size, name)
            assert rank_lines[-1]["losses/auxiliary"] == pytest.approx(lines[-1]["losses/auxiliary"], rel=1e-4)
            assert rank_lines[-1]["bonus/seen"] == lines[-1]["bonus/seen"]


def test_runs_are_recorded_saved_repeated_and_evaluated() -> None:
    settings: dict[str, Any] = {"learner": [(Auxiliary, {"coef": 0.5}), Apart], "advantage": (doubled, {"factor": 1.5})}
    settings |= {**TINY}
    whole = proxrl.train("CartPole-v1", name="whole", **settings)
    text = (whole.path / "config.toml").read_text()
    assert 'learner = ["learners:Auxiliary", "coef=0.5", "learners:Apart"]' in text
    assert 'advantage = ["learners:doubled", "factor=1.5"]' in text
    tensors, _ = saved(whole.path)
    assert int(tensors["learner.0.seen"]) == 96
    assert {"learner.0.layer.weight", "learner.0.layer.bias", "learner.1.weight"} <= tensors.keys()
    assert {"losses/auxiliary", "losses/apart", "bonus/seen"} <= metrics(whole.path)[-1].keys()
    assert proxrl.evaluate(whole.path, episodes=2)["deterministic"].mean > 0
    again = proxrl.train(config=whole.path / "config.toml", runs_dir="again", tensorboard=False, quiet=True)
    assert_same_checkpoint(whole.path, again.path)
    with pytest.raises(ProxRLError, match=r"--learner is .*coef=0.25.* but this run was started with .*coef=0.5"):
        proxrl.train("CartPole-v1", name="whole", **{**settings, "learner": [(Auxiliary, {"coef": 0.25}), Apart]})


def test_two_processes_by_mpirun_learn_what_one_does(tmp_path: Path) -> None:
    words = ("train", "CartPole-v1", "--learner", "learners:Auxiliary", "coef=0.5", "--advantage", "learners:doubled", *FLAGS)
    alone = run(*words, "--name", "one", "--world", "solo", cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    done = run_ranks_by("mpirun", 2, *words, "--name", "two", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (one, _), (two, _) = (saved(tmp_path / f"runs/CartPole-v1/{name}/seed1") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert torch.allclose(tensor.double(), two[name].double(), rtol=1e-3, atol=1e-5), name


# --- errors -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("shape", r"reward returned the shape (3,), but must return one number, or those of 16 steps of 2 environments: (16, 2)"),
        ("nan", "reward returned nan, but must return finite numbers"),
        ("nothing", "reward returned None"),
        ("gradient", "reward failed: RuntimeError: Can't call numpy()"),
        ("list", "loss returned a list, but must return a dict of its terms: mine"),
        ("none", "loss returned None, but must return a dict of its terms: mine"),
        ("missing", "loss returned the terms {}, but must return a dict of its terms: mine"),
        ("other", "loss returned the terms mine, yours, but must return a dict of its terms: mine"),
        ("unnamed", "loss returned the terms mine, but must return a dict of its terms, of which there are none"),
        ("column", "the term mine of its loss is a tensor of shape (16,) of torch.float32, but must be a tensor of one number"),
        ("number", "the term mine of its loss is a float, but must be a tensor of one number, such as batch.mean(column)"),
        ("infinite", "the term mine of its loss is"),
        ("raises", "loss failed: KeyError: 'oops' (--debug shows where)"),
        ("metric", "metrics failed: ValueError: could not convert string to float: 'abc'"),
        ("changing", "stream must return either a Stream or None, the same in every iteration"),
        ("stream", "stream returned a int, but must return a Stream or None"),
        ("one name", "its terms are 'mine', but must be a tuple of names"),
        ("taken", "PPO has a term entropy too; give it another name in its terms"),
        ("double", "its parameters are torch.float64, but must be torch.float32"),
    ],
)
def test_errors_of_a_learner_are_one_line_that_names_it(fault: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "CartPole-v1", "--learner", "learners:Wrong", f"fault={fault}", *FLAGS, "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("proxrl: ")
    assert f"--learner learners:Wrong: {words}" in line


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"advantage": "learners:wrong_estimate"}, "returned the shape (2, 2), but must return advantages of the shape of"),
        ({"advantage": ["learners:wrong_estimate", "fault=none"]}, "--advantage learners:wrong_estimate returned None"),
        ({"advantage": ["learners:wrong_estimate", "fault=text"]}, "returned a str, but must return advantages"),
        ({"advantage": ["learners:wrong_estimate", "fault=nan"]}, "returned numbers that are not finite"),
        (
            {"advantage": ["learners:wrong_estimate", "fault=raises"]},
            "--advantage learners:wrong_estimate failed: KeyError: 'oops'",
        ),
        (
            {"advantage": "learners:few_arguments"},
            "--advantage learners:few_arguments failed: TypeError: few_arguments() takes 1",
        ),
        ({"advantage": ["learners:doubled", "learners:doubled"]}, "but there is one estimator"),
        (
            {"advantage": "learners:nothing"},
            "--advantage learners:nothing: there is no such callable; it must be module:callable",
        ),
        ({"advantage": "gae"}, "--advantage takes module:callable, then its arguments as key=value, not 'gae'"),
        ({"learner": "learners:doubled"}, "--learner learners:doubled failed: TypeError: gae() missing 6"),
        (
            {"learner": "plugins:make_nothing"},
            "--learner plugins:make_nothing returned NoneType, but must return a proxrl.Learner",
        ),
        ({"learner": ["learners:Auxiliary", "depth=3"]}, "unexpected keyword argument 'depth'; check depth=3"),
        ({"learner": "missing:Learner"}, "there is no module 'missing' here"),
        (
            {"learner": ["learners:Apart", "learners:Apart"]},
            "--learner learners:Apart: --learner learners:Apart has a term apart too",
        ),
        ({"learner": lambda _: None}, "can't be imported by that name"),
    ],
)
def test_wrong_learners_and_estimators_are_rejected_before_anything_is_written(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ProxRLError) as refusal:
        proxrl.train("CartPole-v1", **settings, **TINY)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "runs").exists()
