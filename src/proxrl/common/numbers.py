"""Numbers as people read them: in displays, messages and tables."""

import math


def format_number(value: float | None) -> str:
    """Return a measured number with as many digits as it needs.

    One decimal is enough for 20.5 and 1,234.5. Numbers below 10 have three significant digits, because the returns of some tasks
    are between 0 and 1: 4.0, 0.62, 0.0123.
    """
    if value is None or math.isnan(value):
        return "-"
    if 9.995 <= abs(value) < 1e6:
        return f"{value:,.1f}"
    text = f"{value + 0.0:.3g}".replace("e+", "e").replace("e0", "e").replace("e-0", "e-")
    return f"{text}.0" if text.lstrip("-").isdigit() else text
