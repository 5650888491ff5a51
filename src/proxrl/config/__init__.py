"""Every setting of a run: `Config`, and how flags, files and presets become one."""

from proxrl.config.config import (
    CHANGEABLE_ON_RESUME,
    OFF,
    Coefficients,
    Config,
    Phase,
    choices_of,
    field_types,
    flag,
)

__all__ = ["CHANGEABLE_ON_RESUME", "OFF", "Coefficients", "Config", "Phase", "choices_of", "field_types", "flag"]
