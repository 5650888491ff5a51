"""`proxrl report`: the page as a browser shows it from disk, and the data in it."""

import base64
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxrl
from browser import browser, console_messages, needs_browser, prefer_color_scheme, requested_hosts, resize
from proxrl.cli import main
from proxrl.errors import ProxRLError
from proxrl.report.curves import band, read_curves
from proxrl.report.page import as_html, embed_videos, write_report
from proxrl.report.page_data import page_data
from proxrl.runs.evaluations import read_evaluations
from proxrl.runs.folder import RunFolder
from proxrl.runs.lookup import find_runs
from proxrl.runs.metrics import RETURN

SMALL = {"num_envs": 2, "rollout_steps": 64, "num_minibatches": 2, "epochs": 1, "total_steps": 1280, "hidden_sizes": 8}
MARKUP = "</script><img src=x onerror=alert(1)>'\"&<b>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        proxrl.train("CartPole-v1", runs_dir=folder, seed=seed, tensorboard=False, quiet=True, **SMALL)
    proxrl.train("CartPole-v1", runs_dir=folder, name="wide", gamma=0.9, tensorboard=False, quiet=True, **SMALL)
    proxrl.train("Pendulum-v1", runs_dir=folder, tensorboard=False, quiet=True, **SMALL)
    return folder


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def reports(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    cartpole = runs / "CartPole-v1"
    return {
        "one": write_report([cartpole / "ppo/seed1"], folder / "one.html", episodes=2),
        "two seeds": write_report([cartpole / "ppo"], folder / "two.html", episodes=0),
        "all": write_report([runs], folder / "all.html", episodes=0),
    }


def show(driver: Any, page: Path, width: int = 1280, scheme: str = "light") -> None:
    resize(driver, width, 900)
    prefer_color_scheme(driver, scheme)
    driver.get("about:blank")
    console_messages(driver), requested_hosts(driver)
    driver.get(page.as_uri())


def choose(driver: Any, name: str, value: str) -> None:
    driver.execute_script(
        "const input = document.getElementById(arguments[0]); input.value = arguments[1];"
        "input.dispatchEvent(new Event('input', {bubbles: true}))",
        name,
        value,
    )


def line_points(driver: Any) -> np.ndarray:
    """Return the points of the first line, in pixels of the window."""
    d, left, top = driver.execute_script(
        "const line = document.querySelector('.line'), box = line.ownerSVGElement.getBoundingClientRect();"
        "return [line.getAttribute('d'), box.left, box.top]"
    )
    return np.array(re.findall(r"([-\d.]+),([-\d.]+)", d), float) + np.array([left, top])


def pointer(driver: Any, *events: tuple[str, float, float]) -> None:
    """Send mouse events through the browser's own input handling."""
    for kind, x, y in events:
        pressed = {"button": "left", "buttons": 1, "clickCount": 1} if kind != "mouseMoved" else {}
        driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **pressed})


def tip_text(driver: Any) -> str:
    return str(driver.execute_script("const tip = document.querySelector('.tip'); return tip.hidden ? '' : tip.innerText"))


def axis(driver: Any) -> list[str]:
    """Return the labels below the first chart."""
    return list(
        driver.execute_script("return [...document.querySelector('.plot').querySelectorAll('.x-tick')].map(t => t.textContent)")
    )


@needs_browser
@pytest.mark.parametrize("which", ["one", "two seeds", "all"])
def test_the_page_works_from_disk_and_makes_no_requests(driver: Any, reports: dict[str, Path], which: str) -> None:
    show(driver, reports[which])
    assert len(line_points(driver)) > 1
    assert console_messages(driver) == []
    assert requested_hosts(driver) <= {"file:", "data:"}


@needs_browser
def test_the_curve_of_a_run_has_its_points_and_is_visible(driver: Any, reports: dict[str, Path], runs: Path) -> None:
    show(driver, reports["one"])
    curve = read_curves(RunFolder(runs / "CartPole-v1/ppo/seed1"), [RETURN])[RETURN]
    points = line_points(driver)
    assert len(points) == len(curve.x)
    across = (curve.x - curve.x[0]) / (curve.x[-1] - curve.x[0])
    np.testing.assert_allclose((points[:, 0] - points[0, 0]) / np.ptp(points[:, 0]), across, atol=1e-3)
    assert np.ptp(points[:, 0]) > 800
    assert np.ptp(points[:, 1]) > 100
    assert points.min() >= 0
    assert points[:, 1].max() < 900


@needs_browser
def test_hovering_shows_the_logged_value(driver: Any, reports: dict[str, Path], runs: Path) -> None:
    show(driver, reports["one"])
    choose(driver, "smoothing", "0")
    curve = read_curves(RunFolder(runs / "CartPole-v1/ppo/seed1"), [RETURN])[RETURN]
    points, middle = line_points(driver), len(curve.x) // 2
    pointer(driver, ("mouseMoved", points[middle, 0] + 2, 500))
    heading, _, value = tip_text(driver).split("\n")[:3]
    assert heading == f"{curve.x[middle]:,.0f} steps"
    assert float(value) == pytest.approx(curve.value[middle], rel=1e-3)
    driver.execute_script("document.querySelector('.plot svg').focus()")
    from selenium.webdriver.common.keys import Keys

    driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert tip_text(driver).startswith(f"{curve.x[middle + 1]:,.0f} steps")
    pointer(driver, ("mouseMoved", 5, 5))
    assert tip_text(driver) == ""


@needs_browser
def test_dragging_zooms_and_a_double_click_resets_the_zoom(driver: Any, reports: dict[str, Path]) -> None:
    show(driver, reports["one"])
    before, points = axis(driver), line_points(driver)
    first, last = points[0, 0] + 0.25 * np.ptp(points[:, 0]), points[0, 0] + 0.5 * np.ptp(points[:, 0])
    pointer(
        driver, ("mouseMoved", first, 500), ("mousePressed", first, 500), ("mouseMoved", last, 500), ("mouseReleased", last, 500)
    )
    steps = [float(text.replace(",", "")) for text in axis(driver)]
    assert axis(driver) != before
    assert min(steps) >= 128 + 0.24 * 1152
    assert max(steps) <= 128 + 0.51 * 1152
    assert len(line_points(driver)) < len(points)
    driver.execute_script("document.querySelector('.plot svg').dispatchEvent(new MouseEvent('dblclick', {bubbles: true}))")
    assert axis(driver) == before


@needs_browser
def test_the_band_equals_that_of_proxrl_plot(driver: Any, reports: dict[str, Path], runs: Path) -> None:
    show(driver, reports["two seeds"])
    curves = [read_curves(run, [RETURN])[RETURN] for run in find_runs([runs / "CartPole-v1/ppo"])]
    drawn = driver.execute_script(
        "return bandOf(state.data.runs.map(run => curveOf(run, arguments[0], 'step')), 0.03, [0, 1e9], 0.95, 400)", RETURN
    )
    expected = band(curves, 0.03, points=400)
    for name in ("x", "mean", "low", "high"):
        np.testing.assert_allclose(drawn[name], getattr(expected, name), rtol=1e-5)
    points = line_points(driver)
    pointer(driver, ("mouseMoved", points[-1, 0], 500))
    shown = [float(text) for text in re.findall(r"[\d.]+", tip_text(driver).split("ppo")[1])]
    assert shown == pytest.approx([expected.mean[-1], expected.low[-1], expected.high[-1]], rel=1e-3)


@needs_browser
def test_the_legend_hides_and_shows_lines(driver: Any, reports: dict[str, Path]) -> None:
    def lines() -> list[str]:
        return list(driver.execute_script("return [...document.querySelectorAll('.line')].map(l => l.dataset.label)"))

    show(driver, reports["all"])
    assert sorted(lines()) == ["ppo", "ppo", "wide"]
    wide = "[...document.querySelectorAll('.key')].find(key => key.innerText.includes('wide'))"
    driver.execute_script(f"{wide}.click()")
    assert sorted(lines()) == ["ppo", "ppo"]
    assert driver.execute_script(f"return {wide}.getAttribute('aria-pressed')") == "false"
    driver.execute_script(f"{wide}.click()")
    assert sorted(lines()) == ["ppo", "ppo", "wide"]


@needs_browser
def test_every_logged_metric_can_be_selected(driver: Any, reports: dict[str, Path]) -> None:
    show(driver, reports["one"])
    logged = driver.execute_script("return Object.keys(state.data.runs[0].curves.metrics).sort()")
    offered = driver.execute_script("return [...document.querySelectorAll('#metric option')].map(o => o.value)")
    assert offered[0] == RETURN
    assert sorted(set(offered) - {"*"}) == logged
    choose(driver, "metric", "*")
    assert driver.execute_script("return document.querySelectorAll('.chart .line').length") == len(logged)
    choose(driver, "metric", "losses/entropy")
    driver.execute_script("document.querySelector('input[value=time]').click()")
    assert "over time" in driver.execute_script("return document.querySelector('.chart h3').innerText")
    assert axis(driver)[-1].endswith(" s")
    assert console_messages(driver) == []


@needs_browser
def test_key_metrics_are_small_charts_below_the_selected_one(driver: Any, reports: dict[str, Path]) -> None:
    def titles(box: str) -> list[str]:
        script = "return [...document.querySelectorAll(`#${arguments[0]} h3`)].map(h => h.firstChild.textContent.trim())"
        return list(driver.execute_script(script, box))

    show(driver, reports["one"])
    assert titles("charts") == ["return"]
    small = ["episodic length", "explained variance", "entropy", "approx kl", "clipfrac", "value loss", "SPS"]
    assert titles("key-charts") == small
    choose(driver, "metric", "losses/entropy")
    assert titles("key-charts") == [name for name in small if name != "entropy"]
    driver.execute_script("document.getElementById('key-metrics').click()")
    assert titles("key-charts") == []
    show(driver, reports["all"])  # several environments: only on request
    assert titles("key-charts") == []
    driver.execute_script("document.getElementById('key-metrics').click()")
    assert len(titles("key-charts")) == 2 * len(small)
    assert console_messages(driver) == []


@needs_browser
def test_successes_are_shown_beside_returns(driver: Any, runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "seed1"
    shutil.copytree(runs / "Pendulum-v1/ppo/seed1", run)
    data = page_data([RunFolder(run)])
    scores = {"mean": 1.5, "std": 0.5, "min": 1, "max": 2, "episodes": 2, "returns": [1, 2], "success_rate": 0.5}
    evaluations = {"latest": {"step": 1280, "deterministic": scores}}
    data["runs"][0] |= {"success_rate": 0.754, "evaluations": evaluations}
    page = tmp_path / "page.html"
    page.write_text(as_html(data), encoding="utf-8")
    show(driver, page)
    card, listed, evaluation = driver.execute_script(
        "return [document.querySelector('.numbers').innerText, runs.innerText, evaluation.innerText]"
    )
    assert "success\n75%" in card
    assert listed.split("\n")[1].split("\t")[6:8] == ["Best", "Success"]
    assert "75%" in listed
    assert "Max\tSuccess\tEpisodes" in evaluation
    assert "\t50%\t2\t" in evaluation
    data["runs"][0] |= {"success_rate": None, "evaluations": {}}
    page.write_text(as_html(data), encoding="utf-8")
    show(driver, page)
    assert "Success" not in driver.execute_script("return document.querySelector('.numbers').innerText + runs.innerText")
    assert console_messages(driver) == []


@needs_browser
def test_a_running_run_shows_the_time_left(driver: Any, runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "seed1"
    shutil.copytree(runs / "Pendulum-v1/ppo/seed1", run)
    data = page_data([RunFolder(run)])
    data["runs"][0] |= {"state": "running", "step": 1000, "planned_steps": 4000, "steps_per_second": 100.0}
    page = tmp_path / "page.html"
    page.write_text(as_html(data), encoding="utf-8")
    show(driver, page)
    text = driver.execute_script("return [document.querySelector('.numbers').innerText, runs.innerText]")
    assert "time left\n30 s" in text[0]
    assert "Time left" in text[1]
    data["runs"][0]["state"] = "finished"
    page.write_text(as_html(data), encoding="utf-8")
    show(driver, page)
    assert "left" not in driver.execute_script("return main.innerText").lower()


@needs_browser
def test_dark_and_light_colors(driver: Any, reports: dict[str, Path]) -> None:
    def colors() -> list[str]:
        style = (
            "getComputedStyle(document.documentElement).backgroundColor, getComputedStyle(document.querySelector('.line')).stroke"
        )
        return list(driver.execute_script(f"return [{style}]"))

    show(driver, reports["one"], scheme="dark")
    dark = colors()
    show(driver, reports["one"], scheme="light")
    light = colors()
    assert all(one != other for one, other in zip(dark, light, strict=True))
    driver.execute_script("document.getElementById('theme').click()")
    assert colors() == dark
    driver.execute_script("localStorage.clear()")


@needs_browser
@pytest.mark.parametrize("which", ["one", "all"])
def test_a_narrow_page_does_not_scroll_sideways(driver: Any, reports: dict[str, Path], which: str) -> None:
    show(driver, reports[which], width=360)
    assert driver.execute_script("return [innerWidth, document.documentElement.scrollWidth]") == [360, 360]
    # A table that is wider than the screen has a shadow at the edge, behind a cover that scrolls with the content.
    runs_table = "document.getElementById('runs-table')"
    assert driver.execute_script(f"return {runs_table}.scrollWidth > {runs_table}.clientWidth")
    assert "local, local, scroll, scroll" in driver.execute_script(f"return getComputedStyle({runs_table}).backgroundAttachment")
    points = line_points(driver)
    assert 0 < points[:, 0].min() < points[:, 0].max() < 360
    driver.execute_script("document.querySelector('.plot').scrollIntoView({block: 'center'})")
    finger = [{"x": x, "y": y} for x, y in line_points(driver)[-1:]]
    driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": finger})
    driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    assert tip_text(driver).startswith("1,280 steps")


@needs_browser
def test_the_page_shows_settings_evaluation_published_and_system(driver: Any, reports: dict[str, Path], runs: Path) -> None:
    def text(name: str) -> str:
        return str(driver.execute_script("return document.getElementById(arguments[0]).innerText", name))

    show(driver, reports["one"])
    run = RunFolder(runs / "CartPole-v1/ppo/seed1")
    scores = read_evaluations(run)["latest"]
    assert scores["step"] == 1280
    assert f"{scores['stochastic']['max']:.4g}" in text("evaluation")
    assert driver.execute_script("return document.querySelectorAll('.strip circle').length") == 4
    assert "cleanrl/ppo\t490.04 ± 6.12\t500,000" in text("published")
    assert "ProxRL, ppo (1 seed)" in text("published")
    assert text("repeat").startswith("proxrl train CartPole-v1 --num-envs 2 ")
    assert {"Processor", "Cores", "torch", "gymnasium"} <= set(re.split(r"[\t\n]", text("system")))
    all_lines = len(text("settings").splitlines())
    choose(driver, "filter", "rollout")
    assert "rollout_steps\t64" in text("settings")
    assert len(text("settings").splitlines()) < all_lines
    choose(driver, "filter", "")
    driver.execute_script("document.getElementById('changed').click()")
    marked = driver.execute_script(
        "return [...document.querySelectorAll('#settings tbody td:first-child')].map(c => c.innerText)"
    )
    assert {"num_envs", "rollout_steps", "total_steps", "hidden_sizes"} <= set(marked)
    assert "kl_coef" not in marked


@needs_browser
def test_names_with_markup_are_shown_as_text(driver: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text(f"env = {json.dumps(MARKUP)}\nname = {json.dumps(MARKUP)}\nrollout_steps = 8\nseed = 1\n")
    metrics = [{"step": step, "time": 1.0, RETURN: 1.0, f"charts/{MARKUP}": 2.0} for step in (8, 16)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    show(driver, write_report([run], episodes=2))
    assert driver.execute_script("return document.querySelector('h1').textContent") == MARKUP
    assert driver.execute_script("return [document.scripts.length, document.images.length]") == [2, 0]
    assert driver.title.startswith(MARKUP)
    assert len(line_points(driver)) == 2
    assert console_messages(driver) == []


@needs_browser
def test_the_newest_video_is_embedded_and_plays(driver: Any, runs: Path, tmp_path: Path) -> None:
    imageio = pytest.importorskip("imageio.v2", reason="pip install 'proxrl[video]'")
    run = tmp_path / "seed1"
    shutil.copytree(runs / "CartPole-v1/ppo/seed1", run)
    (run / "videos").mkdir()
    for name in ("old", "new"):
        with imageio.get_writer(run / f"videos/{name}.mp4", fps=10) as writer:
            for shade in range(8):
                writer.append_data(np.full((48, 64, 3), shade * 30, np.uint8))
    os.utime(run / "videos/old.mp4", (1, 1))
    show(driver, write_report([run], episodes=0))
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 10).until(lambda d: d.execute_script("return document.querySelector('video')?.videoWidth") == 64)
    text = driver.execute_script("return document.getElementById('video').innerText")
    assert "new.mp4" in text
    assert "Not shown here, but in the run's videos folder: old.mp4" in text
    assert console_messages(driver) == []
    assert requested_hosts(driver) <= {"file:", "data:"}


def test_videos_are_embedded_up_to_the_size_limit(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "videos").mkdir(parents=True)
        (tmp_path / name / "videos/video.mp4").write_bytes(name.encode() * 600)
    entries = [{"path": str(tmp_path / name), "videos": [{"name": "video.mp4", "size": 600}]} for name in ("a", "b")]
    embed_videos(entries, limit=1000)
    first, second = (entry["videos"][0] for entry in entries)  # type: ignore[index]
    assert base64.b64decode(first["source"].partition(",")[2]) == b"a" * 600
    assert "source" not in second


def test_a_checkpoint_is_evaluated_once(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs / "CartPole-v1/wide/seed1"
    assert main(["report", str(run), "--episodes", "3"]) == 0
    assert capsys.readouterr().out == f"Wrote {run / 'report.html'}\n"
    saved = (run / "evaluations.json").read_bytes()
    assert json.loads(saved)["latest"]["deterministic"]["episodes"] == 3
    assert main(["report", str(run), "--episodes", "4"]) == 0
    assert (run / "evaluations.json").read_bytes() == saved


def test_a_run_that_cannot_be_evaluated_is_shown_without_scores(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "seed1"
    shutil.copytree(runs / "Pendulum-v1/ppo/seed1", run)
    config = run / "config.toml"
    config.write_text(config.read_text().replace('"Pendulum-v1"', '"__main__:make_env"'))
    assert main(["report", str(run)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"Wrote {run / 'report.html'}\n"
    evaluating, problem = printed.err.splitlines()
    assert evaluating.startswith(f"Evaluating {run}")
    assert problem.startswith(f"proxrl: {run} is not evaluated: ")
    assert page_data([RunFolder(run)])["runs"][0]["command"] == f"proxrl train --config {config}"


def test_runs_of_one_name_in_two_folders_are_not_averaged(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "CartPole-v1/ppo", tmp_path / "again/ppo")
    entries = page_data([*find_runs([runs / "CartPole-v1/ppo"]), *find_runs([tmp_path])])["runs"]
    assert [entry["label"] for entry in entries].count(f"ppo ({tmp_path / 'again/ppo'})") == 2
    assert len({entry["label"] for entry in entries}) == 2


def test_scores_belong_to_the_step_of_the_checkpoint_not_of_the_status(runs: Path, tmp_path: Path) -> None:
    """The status of a failed run has the step that was reached, which is later than the last checkpoint."""
    shutil.copytree(find_runs([runs / "Pendulum-v1"])[0].path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.evaluations_path.unlink(missing_ok=True)
    step = folder.checkpoint_step()
    folder.write_status("failed", 999_999, 1_000_000)
    write_report([folder.path], episodes=2)
    assert json.loads(folder.evaluations_path.read_bytes())["latest"]["step"] == step
    assert f'"latest":{{"step":{step},' in (folder.path / "report.html").read_text()
    written = folder.evaluations_path.stat().st_mtime_ns
    write_report([folder.path], episodes=3)
    assert folder.evaluations_path.stat().st_mtime_ns == written  # not evaluated again


def test_a_run_that_cannot_be_read_does_not_hide_the_others(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.toml").write_text("env = ")
    data = page_data([RunFolder(tmp_path / "broken"), *find_runs([runs / "Pendulum-v1"])])
    assert [entry["env"] for entry in data["runs"]] == ["Pendulum-v1"]
    assert "can't read" in data["unreadable"][0]["problem"]
    with pytest.raises(ProxRLError, match="can't read"):
        write_report([tmp_path / "broken"])


def test_the_package_exports_write_report() -> None:
    assert proxrl.report.write_report is write_report


def test_bad_input_gives_a_one_line_error(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ProxRLError, match="--episodes is -1"):
        write_report([runs], episodes=-1)
    with pytest.raises(ProxRLError, match="can't write"):
        write_report([runs / "Pendulum-v1"], tmp_path / "missing/report.html", episodes=0)
    with pytest.raises(ProxRLError, match="no run at"):
        write_report([tmp_path / "nothing"])
