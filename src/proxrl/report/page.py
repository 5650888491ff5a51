"""One HTML page about runs that needs nothing but itself: styles, code, numbers and videos are inside."""

import base64
import hashlib
import html
import json
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from proxrl.common.files import check_writable, one_line_errors, replacing
from proxrl.errors import ProxRLError, describe
from proxrl.log.terminal import can_redraw
from proxrl.report.page_data import VIDEO_TYPES, page_data
from proxrl.runs.evaluations import current_evaluation, read_evaluations
from proxrl.runs.folder import RUNS_DIR, RunFolder
from proxrl.runs.lookup import find_runs

# In the order in which they build on each other.
SCRIPTS = ("numbers.js", "pointer.js", "chart.js", "sections.js", "details.js", "page.js")
# What a page may hold of videos; mail and browsers bear no more with ease.
VIDEO_BYTES = 20_000_000


def write_report(
    places: Sequence[str | Path], out: Path | None = None, episodes: int = 20, runs_dir: str | Path = RUNS_DIR
) -> Path:
    """The page of all runs at or below `places`; their latest checkpoints are evaluated first if they have not been."""
    if episodes < 0:
        raise ProxRLError(f"--episodes is {episodes}, but must be at least 0, which evaluates nothing")
    folders = find_runs(places, runs_dir)
    if out is None:
        out = folders[0].path / "report.html" if len(folders) == 1 else Path("report.html")
    check_writable(out)
    evaluations = {folder.path: evaluated(folder, episodes) for folder in folders} if episodes else {}
    data = page_data(folders, evaluations)
    if not data["runs"]:
        raise ProxRLError(data["unreadable"][0]["problem"])
    embed_videos(data["runs"])
    with one_line_errors("write", out), replacing(out) as temporary:
        temporary.write_text(as_html(data), encoding="utf-8", newline="\n")
    return out


def evaluated(folder: RunFolder, episodes: int) -> dict[str, Any]:
    """The scores of a run, with those of its latest checkpoint; what can't be played is told in a line and left out."""
    kept = read_evaluations(folder)
    if current_evaluation(folder) is not None or not folder.checkpoint_path("latest").exists():
        return kept
    from proxrl.look.agent import load
    from proxrl.look.evaluation import evaluate_and_save

    if not can_redraw(sys.stderr):  # where there is no bar
        print(f"Evaluating {folder.path}; --episodes 0 leaves it out", file=sys.stderr, flush=True)
    try:
        agent = load(folder.path)
        scores = evaluate_and_save(folder.path, episodes=episodes, agent=agent)
    except Exception as error:  # an environment may fail in its own way, and the rest of the page is worth having
        problem = " ".join(describe(error).split())
        print(f"proxrl: {folder.path} is not evaluated: {problem}", file=sys.stderr)
        return kept
    return {**kept, "latest": {"step": agent.step, **{kind: score.summary() for kind, score in scores.items()}}}


def embed_videos(runs: Sequence[dict[str, Any]], limit: int = VIDEO_BYTES) -> None:
    """Put the newest video of each run into its entry, as far as there is room."""
    room = limit
    for run in runs:
        for entry in run["videos"][:1]:
            path = Path(run["path"]) / "videos" / entry["name"]
            if entry["size"] <= room:
                room -= entry["size"]
                with one_line_errors("read", path):
                    content = base64.b64encode(path.read_bytes()).decode()
                entry["source"] = f"data:{VIDEO_TYPES[path.suffix]};base64,{content}"


def page_file(name: str) -> str:
    return resources.files("proxrl.report").joinpath("assets", name).read_text(encoding="utf-8")


def script() -> str:
    return "\n".join(map(page_file, SCRIPTS))


def as_html(data: dict[str, Any]) -> str:
    style, code = page_file("page.css"), script()
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(code)};"
        " img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    # Inside a script element only `<` could end or nest it; JSON may spell it otherwise.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    foot = f'<script type="application/json" id="data">{text}</script>\n<script>{code}</script>'
    return filled(title_of(data), head, foot)


def title_of(data: dict[str, Any]) -> str:
    envs = list(dict.fromkeys(run["env"] for run in data["runs"]))
    return f"{', '.join(envs[:3])}{' and more' if len(envs) > 3 else ''} - ProxRL"


def filled(title: str, head: str, foot: str) -> str:
    page = page_file("page.html")
    for mark, text in (("title", html.escape(title)), ("head", head), ("foot", foot)):
        before, _, after = page.partition(f"<!-- {mark} -->")
        page = before + text + after
    return page


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
