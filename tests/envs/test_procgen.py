"""Procgen by EnvPool: names, levels, and the error for a missing Qt."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxrl
from proxrl.config.resolve import resolve
from proxrl.envs.envpool import EnvPoolEnvs
from proxrl.envs.registry import find_family, make_environments
from proxrl.errors import ProxRLError

pytest.importorskip("envpool", reason="Procgen needs EnvPool")


@pytest.fixture(scope="module")
def qt() -> None:
    try:
        make_environments("CoinrunEasy-v0").close()
    except ProxRLError as error:
        pytest.skip(str(error))


def test_procgen_games_use_the_procgen_preset() -> None:
    assert find_family("StarpilotHard-v0").name == "procgen"
    config = resolve("StarpilotHard-v0", {}).config
    assert (config.encoder, config.gamma, config.normalize_rewards, config.vector) == ("impala", 0.999, True, "envpool")


def test_the_error_for_missing_qt_has_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise ImportError("EnvPool Procgen requires the system Qt 5 runtime on Linux.")

    monkeypatch.setattr("envpool.make_spec", missing)
    with pytest.raises(ProxRLError, match="sudo apt install libqt5gui5"):
        EnvPoolEnvs("CoinrunEasy-v0", 1)


@pytest.mark.usefixtures("qt")
def test_levels_follow_env_kwargs() -> None:
    def first_frames(**kwargs: int) -> set[bytes]:
        environments = make_environments("CoinrunEasy-v0", kwargs, num_envs=16)
        obs = environments.reset(1)
        assert obs.shape == (16, 3, 64, 64)
        environments.close()
        return {row.tobytes() for row in obs}

    assert len(first_frames(num_levels=1, start_level=7)) == 1
    assert first_frames(num_levels=1, start_level=7) != first_frames(num_levels=1, start_level=8)
    assert len(first_frames(num_levels=0)) > 8


@pytest.mark.usefixtures("qt")
@pytest.mark.timeout(300)
def test_training_and_acting(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"num_envs": 4, "rollout_steps": 16, "num_minibatches": 2, "epochs": 1, "total_steps": 128}
    result = proxrl.train("BigfishEasy-v0", runs_dir=tmp_path, quiet=True, tensorboard=False, **settings)
    assert result.finished
    agent = proxrl.load(result.path)
    assert agent.act(np.zeros((3, 64, 64), np.uint8)) in range(15)
