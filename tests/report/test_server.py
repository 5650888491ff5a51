"""`proxrl watch`: what the server serves and refuses, and that the page follows the runs."""

import gzip
import http.client
import json
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import proxrl
from browser import browser, console_messages, needs_browser, requested_hosts
from commands import start
from proxrl.cli import main
from proxrl.errors import ProxRLError
from proxrl.report.metrics_reader import MetricsReader
from proxrl.report.server import Server, make_server
from proxrl.runs.folder import RunFolder
from proxrl.runs.metrics import RETURN

SMALL = {"num_envs": 2, "rollout_steps": 64, "num_minibatches": 2, "epochs": 1, "total_steps": 640, "hidden_sizes": 8}
VIDEO = bytes(range(256)) * 4


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    return proxrl.train("CartPole-v1", runs_dir=folder, tensorboard=False, quiet=True, **SMALL).path


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """A folder with one run, which has a video."""
    run = tmp_path / "runs/CartPole-v1/ppo/seed1"
    shutil.copytree(trained, run)
    (run / "videos").mkdir()
    (run / "videos/video 1.mp4").write_bytes(VIDEO)
    (run / "videos/notes.txt").write_text("not for all")
    return tmp_path / "runs"


@pytest.fixture
def server(runs: Path) -> Iterator[Server]:
    made = make_server([runs], port=0)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def request(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def index(server: Server) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(request(server, "/data.json")[2])
    return data


def append(run: Path, **metrics: float) -> None:
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"time": 9.0, **metrics}) + "\n")


def test_the_data_describes_the_runs(server: Server) -> None:
    (head,) = index(server)["runs"]
    assert (head["env"], head["name"], head["seed"], head["state"], head["step"]) == ("CartPole-v1", "ppo", 1, "finished", 640)
    details = json.loads(request(server, f"/run/{head['id']}.json")[2])
    assert details["version"] == head["version"]
    assert details["curves"]["step"] == [128, 256, 384, 512, 640]
    assert details["settings"]["num_envs"] == 2
    assert details["videos"] == [{"name": "video 1.mp4", "size": 1024, "source": f"/video/{head['id']}/video%201.mp4"}]


def test_the_server_listens_on_the_loopback_interface_only(server: Server) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_only_get_and_head_are_allowed(server: Server, runs: Path) -> None:
    before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"):
        status, headers, _ = request(server, "/data.json", method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD")
    status, headers, body = request(server, "/data.json", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 100
    assert before == {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8265", "127.0.0.1.evil.example", "localhost.evil.example:1", ""])
def test_another_host_name_is_refused(server: Server, host: str) -> None:
    assert request(server, "/data.json", Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1:8265"])
def test_local_host_names_are_accepted(server: Server, host: str) -> None:
    assert request(server, "/data.json", Host=host)[0] == 200


def test_no_other_file_is_served(server: Server, runs: Path) -> None:
    run = index(server)["runs"][0]["id"]
    escapes = [
        "../config.toml",
        "..%2fconfig.toml",
        "%2e%2e%2fconfig.toml",
        "%2e%2e/config.toml",
        "..%5cconfig.toml",
        "notes.txt",
    ]
    escapes += [
        "..%252fconfig.toml",
        "video%201.mp4%00.txt",
        ".",
        "%2e",
        "",
        str(runs / "CartPole-v1/ppo/seed1/videos/video 1.mp4").replace("/", "%2f").replace(" ", "%20"),
    ]
    paths = [f"/video/{run}/{escape}" for escape in escapes]
    paths += [
        "/../config.toml",
        "/%2e%2e/config.toml",
        "/config.toml",
        "/etc/passwd",
        "//etc/passwd",
        f"/run/{run}",
        "/page.html",
    ]
    paths += [f"/run/../{run}.json", f"/run/{'0' * 12}.json", f"/video/{'0' * 12}/video%201.mp4", f"/run/{run}.json/../../data"]
    for path in paths:
        status, _, body = request(server, path)
        assert (status, body) == (404, b"Not Found"), path


def test_a_video_is_served_whole_or_in_part(server: Server) -> None:
    path = f"/video/{index(server)['runs'][0]['id']}/video%201.mp4"
    assert request(server, path)[2] == VIDEO
    status, headers, body = request(server, path, Range="bytes=10-19")
    assert (status, headers["Content-Range"], body) == (206, "bytes 10-19/1024", VIDEO[10:20])
    assert request(server, path, Range="bytes=1000-")[2] == VIDEO[1000:]
    assert request(server, path, Range="bytes=5000-")[0] == 416
    assert request(server, path, Range="bytes=50-10")[::2] == (200, VIDEO)  # an invalid range is ignored


def test_links_among_the_videos_are_not_followed(server: Server, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("not for all")
    (runs / "CartPole-v1/ppo/seed1/videos/link.mp4").symlink_to(tmp_path / "secret")
    run = index(server)["runs"][0]["id"]
    assert request(server, f"/video/{run}/link.mp4")[0] == 404
    assert "link.mp4" not in request(server, f"/run/{run}.json")[2].decode()


def test_headers_forbid_what_the_page_does_not_need(server: Server) -> None:
    for path in ("/", "/data.json", "/page.js", "/nothing"):
        headers = request(server, path)[1]
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_polling_only_reads_files_that_have_changed(server: Server, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    read = MetricsReader.read
    monkeypatch.setattr(MetricsReader, "read", lambda reader: (reads.append(1), read(reader))[1])
    before = index(server)["runs"][0]
    index(server), index(server)
    assert len(reads) == 1
    append(runs / "CartPole-v1/ppo/seed1", step=768, **{RETURN: 5.0})
    after = index(server)["runs"][0]
    assert len(reads) == 2
    assert after["version"] != before["version"]


def test_unchanged_files_are_not_sent_again(server: Server) -> None:
    _, headers, body = request(server, "/page.js")
    assert request(server, "/page.js", **{"If-None-Match": headers["ETag"]})[::2] == (304, b"")
    compressed = request(server, "/page.js", **{"Accept-Encoding": "gzip"})[2]
    assert gzip.decompress(compressed) == body


def test_a_broken_run_does_not_hide_the_others(server: Server, runs: Path) -> None:
    other = runs / "CartPole-v1/ppo/seed2"
    other.mkdir()
    (other / "config.toml").write_text("env = ")
    data = index(server)
    assert [run["seed"] for run in data["runs"]] == [1]
    assert data["unreadable"][0]["path"] == str(other)


def test_the_next_free_port_is_used(runs: Path) -> None:
    with make_server([runs]) as first, make_server([runs]) as second:
        assert second.server_address[1] > first.server_address[1] >= 8265
        with pytest.raises(ProxRLError, match=f"can't listen on port {first.server_address[1]}: .*; give another --port"):
            make_server([runs], first.server_address[1])


def test_bad_input_gives_a_one_line_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["watch", str(tmp_path), "--port", "70000"]) == 2
    assert "--port is 70000" in capsys.readouterr().err


@contextmanager
def serving(*places: str, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command in a process, and yield the process and the address that it prints."""
    process = start("watch", *places, "--port", "0", cwd=cwd)
    try:
        assert process.stdout is not None
        line = re.fullmatch(r"Watching .+ at (http://127\.0\.0\.1:\d+/) \(Ctrl-C to stop\)\n", process.stdout.readline())
        assert line is not None
        yield process, line[1]
    finally:
        process.kill()
        process.wait()


def test_the_command_prints_its_address_and_stops_cleanly(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with serving(cwd=tmp_path) as (process, url):
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)  # stays open, and must not delay the exit
        connection.request("GET", "/data.json")
        assert json.loads(connection.getresponse().read())["runs"] == []
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20) == ("", "")
        assert process.returncode == 0
        connection.close()


@needs_browser
def test_the_page_updates_automatically(runs: Path, tmp_path: Path) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    run = RunFolder(runs / "CartPole-v1/ppo/seed1")
    config = run.config()
    with serving(str(runs), cwd=tmp_path) as (process, url), browser(tmp_path / "profile") as driver:

        def until(condition: str) -> None:
            WebDriverWait(driver, 20).until(lambda d: d.execute_script(f"return {condition}"))

        points = "document.querySelector('.line').getAttribute('d').split('L').length"
        driver.get("about:blank")
        requested_hosts(driver), console_messages(driver)
        driver.get(url)
        until("document.querySelector('.line') !== null")
        driver.execute_script("window.same = true; document.getElementById('filter').value = 'gamma'")
        assert driver.execute_script(f"return {points}") == 5
        assert driver.execute_script("return document.getElementById('notice').innerText") == "Live"

        run.create(config)  # as a resuming process does
        run.write_status("running", 640, 10_000)
        append(run.path, step=768, **{RETURN: 432.1, "charts/SPS": 1234.0})
        until(f"{points} === 6")
        until("document.querySelector('#runs-table .badge').innerText === 'running'")
        assert "768" in driver.execute_script("return document.getElementById('runs-table').innerText")

        run.close()  # killed: no file changes
        until("document.querySelector('#runs-table .badge').innerText === 'stopped'")

        shutil.copytree(run.path, runs / "CartPole-v1/other/seed1")
        config_path = runs / "CartPole-v1/other/seed1/config.toml"
        config_path.write_text(config_path.read_text().replace('name = "ppo"', 'name = "other"'))
        until("document.querySelectorAll('#charts .line').length === 2")
        assert driver.execute_script("return [window.same, document.getElementById('filter').value]") == [True, "gamma"]
        assert console_messages(driver) == []
        assert requested_hosts(driver) <= {"http:127.0.0.1", "data:"}

        # After a failed response the page continues polling.
        driver.execute_script("window.realFetch = window.fetch; window.fetch = async () => ({ ok: false })")
        until("document.getElementById('notice').innerText.startsWith('The server has stopped')")
        driver.execute_script("window.fetch = window.realFetch")
        until("document.getElementById('notice').innerText === 'Live'")

        process.send_signal(signal.SIGINT)
        until("document.getElementById('notice').innerText.startsWith('The server has stopped')")
