"""The settings of a run: `Config`, and how flags, files and presets are turned into one."""

from proxrl.config.config import CHANGEABLE_ON_RESUME, Coefficients, Config, Phase, field_types
from proxrl.config.fields import OFF, choices_of, flag

__all__ = ["CHANGEABLE_ON_RESUME", "OFF", "Coefficients", "Config", "Phase", "choices_of", "field_types", "flag"]
