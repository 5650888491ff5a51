"""A run's policy as one file: `proxrl.export.export_policy(run)`."""

from proxrl.export.exporter import Exported, export_policy

__all__ = ["Exported", "export_policy"]
