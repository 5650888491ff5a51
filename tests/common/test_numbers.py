"""Numbers have as many digits as they need."""

import math

import pytest

from proxrl.common.numbers import format_number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (math.nan, "-"),
        (math.inf, "inf"),
        (0.0, "0.0"),
        (-0.0, "0.0"),
        (-4.0, "-4.0"),
        (0.62, "0.62"),
        (0.625, "0.625"),
        (0.0123456, "0.0123"),
        (-0.00001234, "-1.23e-5"),
        (9.46, "9.46"),
        (9.996, "10.0"),
        (20.51, "20.5"),
        (-200.0, "-200.0"),
        (1234.56, "1,234.6"),
        (999_999.4, "999,999.4"),
        (1_234_567.0, "1.23e6"),
        (-2.5e12, "-2.5e12"),
    ],
)
def test_format_number(value: float | None, text: str) -> None:
    assert format_number(value) == text
