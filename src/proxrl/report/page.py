"""Write `report.html`: one self-contained HTML page about runs, with styles, scripts, numbers and videos inside."""

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
from proxrl.errors import ProxRLError, describe, printable
from proxrl.log.terminal import can_redraw
from proxrl.report.page_data import VIDEO_TYPES, page_data
from proxrl.runs.evaluations import current_evaluation, read_evaluations
from proxrl.runs.folder import RUNS_DIR, RunFolder
from proxrl.runs.lookup import find_runs

# A script may use those before it.
SCRIPTS = ("curves.js", "format.js", "pointer.js", "chart.js", "sections.js", "details.js", "page.js")
# All videos of one page together; larger pages are hard to mail and slow to open.
VIDEO_BYTES = 20_000_000


def write_report(
    runs: Sequence[str | Path],
    out: Path | None = None,
    episodes: int = 20,
    runs_dir: str | Path = RUNS_DIR,
    trust: bool = False,
) -> Path:
    """Write the page of all runs that `runs` stand for, see `find_runs`, and return its path.

    Latest checkpoints without an evaluation are evaluated first, with `episodes` deterministic and as many stochastic episodes.
    Those of runs whose settings name code are left out if somebody else made them, unless `trust` is given.
    """
    if episodes < 0:
        raise ProxRLError(f"--episodes is {episodes}, but must be at least 0 (0 skips the evaluation)")
    folders = find_runs(runs, runs_dir)
    if out is None:
        out = folders[0].path / "report.html" if len(folders) == 1 else Path("report.html")
    check_writable(out)
    evaluations = {folder.path: evaluate_latest(folder, episodes, trust) for folder in folders} if episodes else {}
    data = page_data(folders, evaluations)
    if not data["runs"]:
        raise ProxRLError(data["unreadable"][0]["problem"])
    embed_videos(data["runs"])
    with one_line_errors("write", out), replacing(out) as temporary:
        temporary.write_text(as_html(data), encoding="utf-8", newline="\n")
    return out


def evaluate_latest(folder: RunFolder, episodes: int, trust: bool = False) -> dict[str, Any]:
    """Return the evaluations of a run, including its latest checkpoint. If that can't be evaluated, print why and omit it."""
    saved = read_evaluations(folder)
    if current_evaluation(folder) is not None or not folder.checkpoint_path("latest").exists():
        return saved
    from proxrl.look.agent import load
    from proxrl.look.evaluation import evaluate_and_save

    if not can_redraw(sys.stderr):  # otherwise there is a progress bar
        print(printable(f"Evaluating {folder.path} (--episodes 0 skips this)"), file=sys.stderr, flush=True)
    try:
        agent = load(folder.path, trust=trust)
        scores = evaluate_and_save(folder, agent, episodes)
    except Exception as error:  # an environment may raise anything, and the rest of the page is still useful
        problem = " ".join(describe(error).split())
        print(printable(f"proxrl: {folder.path} is not evaluated: {problem}"), file=sys.stderr)
        return saved
    return {**saved, "latest": {"step": agent.step, **{kind: score.summary() for kind, score in scores.items()}}}


def embed_videos(runs: Sequence[dict[str, Any]], limit: int = VIDEO_BYTES) -> None:
    """Put the newest video of each run into its entry, as a data URL, until `limit` bytes are used."""
    room = limit
    for run in runs:
        for entry in run["videos"][:1]:
            path = Path(run["path"]) / "videos" / entry["name"]
            if entry["size"] <= room:
                room -= entry["size"]
                with one_line_errors("read", path):
                    content = base64.b64encode(path.read_bytes()).decode()
                entry["source"] = f"data:{VIDEO_TYPES[path.suffix]};base64,{content}"


def read_asset(name: str) -> str:
    """Return the text of a file in assets/."""
    return resources.files("proxrl.report").joinpath("assets", name).read_text(encoding="utf-8")


def script() -> str:
    """Return all scripts of the page as one."""
    return "\n".join(map(read_asset, SCRIPTS))


def as_html(data: dict[str, Any]) -> str:
    """Return the page. Its Content-Security-Policy allows only its own style and script, by their digests."""
    style, code = read_asset("page.css"), script()
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(code)};"
        " img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    # Only `<` can end a script element or open another inside it; JSON allows an escape instead.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    foot = f'<script type="application/json" id="data">{text}</script>\n<script>{code}</script>'
    return fill_page(title_of(data), head, foot)


def title_of(data: dict[str, Any]) -> str:
    envs = list(dict.fromkeys(run["env"] for run in data["runs"]))
    return f"{', '.join(envs[:3])}{' and more' if len(envs) > 3 else ''} - ProxRL"


def fill_page(title: str, head: str, foot: str) -> str:
    """Return page.html with its three placeholders replaced."""
    page = read_asset("page.html")
    for placeholder, text in (("title", html.escape(title)), ("head", head), ("foot", foot)):
        before, _, after = page.partition(f"<!-- {placeholder} -->")
        page = before + text + after
    return page


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
