"""Events are read back with TensorBoard itself."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from disks import file_size_limit
from proxrl.errors import ProxRLError
from proxrl.log.records import checksum
from proxrl.log.tensorboard import TensorBoardLogger

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def points(folder: Path, tag: str) -> list[tuple[int, float]]:
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)] if tag in events.Tags()["scalars"] else []


def write(folder: Path, resume_step: int | None, values: dict[int, float]) -> None:
    logger = TensorBoardLogger(folder, resume_step)
    for step, value in values.items():
        logger.log(step, {"charts/episodic_return": value, "losses/entropy": -value})
    logger.close()


def test_scalars(tmp_path: Path) -> None:
    write(tmp_path, None, {0: 1.0, 512: 2.5})
    assert points(tmp_path, "charts/episodic_return") == [(0, 1.0), (512, 2.5)]
    assert points(tmp_path, "losses/entropy") == [(0, -1.0), (512, -2.5)]


def test_resume_hides_the_points_that_it_repeats(tmp_path: Path) -> None:
    write(tmp_path, None, {100: 1.0, 200: 2.0, 300: 3.0, 400: 4.0})
    write(tmp_path, 200, {300: 30.0})
    assert points(tmp_path, "charts/episodic_return") == [(100, 1.0), (200, 2.0), (300, 30.0)]
    write(tmp_path, None, {0: 7.0})
    assert points(tmp_path, "charts/episodic_return") == [(0, 7.0)]


def test_points_appear_while_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxrl.log.tensorboard.WRITE_SECONDS", 0.1)
    logger = TensorBoardLogger(tmp_path)
    logger.log(1, {"a": 1.0})
    assert points(tmp_path, "a") == [], "events are written in batches"
    time.sleep(0.15)
    logger.log(2, {"a": 2.0})
    assert points(tmp_path, "a") == [(1, 1.0), (2, 2.0)]
    logger.close()


def test_a_full_disk_is_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("proxrl.log.tensorboard.WRITE_SECONDS", 0.0)
    logger = TensorBoardLogger(tmp_path)
    logger.log(1, {"a": 1.0})
    with file_size_limit(sum(path.stat().st_size for path in tmp_path.iterdir()) + 10):
        with pytest.raises(ProxRLError, match="can't write TensorBoard events") as error:
            logger.log(2, {"a": 2.0})
        logger.close()
    assert "\n" not in str(error.value)
    assert points(tmp_path, "a") == [(1, 1.0)]
    assert capfd.readouterr().err.count("Traceback") == 0


def test_tensorflow_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('imported')")
    code = """
import sys
from pathlib import Path
from proxrl.log.tensorboard import TensorBoardLogger
TensorBoardLogger(Path(sys.argv[1])).close()
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], env=environment, check=True)


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProxRLError, match="can't write TensorBoard events"):
        TensorBoardLogger(tmp_path / "file")


def test_the_settings_of_a_run_are_on_the_hparams_page(tmp_path: Path) -> None:
    """TensorBoard's own backend finds the run, its settings and its last return."""
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    settings = {"learning_rate": 0.25, "compile": True, "target_kl": None, "hidden_sizes": (8, 8), "seed": 3}
    logger = TensorBoardLogger(tmp_path / "run", None, settings)
    logger.log(10, {"charts/episodic_return": 1.5})
    logger.close()
    runs = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    runs.Reload()
    context = TBContext(data_provider=data_provider.MultiplexerDataProvider(runs, str(tmp_path)))
    backend, request = backend_context.Context(context), RequestContext()
    metadata = backend.hparams_metadata(request, "")
    experiment = backend.experiment_from_metadata(
        request, "", True, metadata, backend.hparams_from_data_provider(request, "", limit=None)
    )
    assert next(info.name.tag for info in experiment.metric_infos) == "charts/episodic_return"
    asked = api_pb2.ListSessionGroupsRequest(
        start_index=0, slice_size=9, allowed_statuses=[0], col_params=[{"metric": {"tag": "charts/episodic_return"}}]
    )
    listed = list_session_groups.Handler(request, backend, "", asked).run()
    (group,) = listed.session_groups
    shown = {name: value.WhichOneof("kind") and getattr(value, value.WhichOneof("kind")) for name, value in group.hparams.items()}
    assert shown == {"learning_rate": 0.25, "compile": True, "target_kl": "off", "hidden_sizes": "(8, 8)", "seed": 3.0}
    assert [(metric.name.tag, metric.value) for metric in group.metric_values if metric.value] == [
        ("charts/episodic_return", 1.5)
    ]


def test_checksums_are_those_of_tensorboard() -> None:
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    for data in (b"", b"123456789", bytes(range(256)) * 3):
        assert checksum(data) == masked_crc32c(data)
