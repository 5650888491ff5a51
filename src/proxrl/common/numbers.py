"""Numbers as people read them: in displays, messages and tables."""

import math


def readable(value: float | None) -> str:
    """Return a return, a loss or another measured number with as many digits as it needs.

    From 10 on one decimal is enough: 20.5, 1,234.5. Smaller numbers have three significant digits, because the returns of some
    tasks are between 0 and 1: 0.62, 0.0123.
    """
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value) or abs(value) >= 1e6 or abs(value) < 9.995:
        return f"{value + 0.0:.3g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return f"{value:,.1f}"
