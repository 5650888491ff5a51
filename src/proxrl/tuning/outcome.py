"""The results of a study: the best settings as a preset file, and a table of the best trials."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxrl.common.files import one_line_errors, replacing
from proxrl.config import Config
from proxrl.config.parse import toml_value
from proxrl.config.presets import trust_preset
from proxrl.config.resolve import Resolved
from proxrl.tuning.space import as_settings
from proxrl.tuning.study import INDEX, Study

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

TRIALS_IN_TABLE = 3


def settings_of(study: Study, trial: "FrozenTrial") -> dict[str, Any]:
    return as_settings({name: study.space[name].value_of(sample) for name, sample in trial.params.items()}, study.base)


def write_preset(path: Path, study: Study, start: Resolved, fixed: dict[str, Any], measure: str) -> None:
    """Write the best trial's settings and all others that are not defaults, so that the file alone repeats the trial."""
    best = study.ranked()[0]
    tuned = settings_of(study, best)
    trial = f"study {study.folder.name}, trial {best.user_attrs[INDEX]}"
    heading = f"# {trial}, the best of {len(study.done())}: {measure}: {best.values[0]:.6g}"
    lines = [heading, f"title = {toml_value(f'{start.config.env}, tuned')}", "", "[values]"]
    for spec in dataclasses.fields(Config):
        source = start.sources[spec.name]
        if spec.name in tuned:
            source = f"{trial}: {best.values[0]:.6g}"
        elif spec.name in fixed:
            source = f"fixed in study {study.folder.name}"
        elif spec.name == "env" or source == "default" or source.startswith("auto"):
            continue
        value = tuned.get(spec.name, getattr(start.config, spec.name))
        lines.append(f"{spec.name} = {{ value = {toml_value(value)}, source = {toml_value(source)} }}")
    with one_line_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    trust_preset(path, start.config.env)


def trial_table(study: Study) -> str:
    """Return the best trials side by side, with the importance of each setting."""
    best = study.ranked()[:TRIALS_IN_TABLE]
    importances = study.importances()
    rows = [["", *(f"trial {trial.user_attrs[INDEX]}" for trial in best), "importance" if importances else ""]]
    rows.append(["score", *(f"{trial.values[0]:.4g}" for trial in best), ""])
    for name, dimension in sorted(study.space.items(), key=lambda item: -importances.get(item[0], 0.0)):
        cells = [_short(dimension.value_of(trial.params[name])) for trial in best]
        rows.append([name, *cells, f"{importances[name]:.0%}" if name in importances else ""])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else toml_value(value).strip('"')
