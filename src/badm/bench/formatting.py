"""Numbers as sentences and tables show them; scores are formatted by ``Score.format``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction

NEVER = "never"  # a time to a target that was missed


def significant(value: float, digits: int = 3) -> str:
    """Format with so many significant digits and without an exponent.

    >>> significant(1234.5), significant(0.04217), significant(999.6)
    ('1,234', '0.0422', '1,000')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exponent = math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def compact(value: float) -> str:
    """Format a setting, such as a learning rate.

    >>> compact(0.001), compact(3.1622776e-05), compact(200.0)
    ('0.001', '3.16e-05', '200')
    """
    return f"{value:.3g}"


def count(value: float) -> str:
    """Format a number of steps or gradients, whose median may end in a half.

    >>> count(12345.0), count(12.5), count(float("inf"))
    ('12,345', '12.5', 'never')
    """
    return f"{value:,.1f}".removesuffix(".0") if math.isfinite(value) else NEVER


def part(value: float) -> str:
    """Format a part of a budget as a fraction where it is one in eighths.

    >>> part(0.375), part(0.5), part(1.0), part(0.4204), part(float("inf"))
    ('3/8', '1/2', '1', '0.42', 'never')
    """
    if not math.isfinite(value):
        return NEVER
    eighths = Fraction(value).limit_denominator(8)
    return str(eighths) if eighths == value else f"{value:.2g}"


def ratio(value: float) -> str:
    """Format a ratio or a mean of parts with two digits.

    >>> ratio(0.4204), ratio(1.0), ratio(12.61), ratio(float("inf"))
    ('0.42', '1.0', '13', 'never')
    """
    return significant(value, 2) if math.isfinite(value) else NEVER


def seconds(value: float) -> str:
    """Format a time.

    >>> seconds(0.00421), seconds(0.95), seconds(4000), seconds(float("inf"))
    ('4.21 ms', '0.950 s', '4,000 s', 'never')
    """
    if not math.isfinite(value):
        return NEVER
    return f"{significant(1000 * value)} ms" if value < 0.0995 else f"{significant(value)} s"


def size(value: float) -> str:
    """Format a number of bytes.

    >>> size(0), size(812), size(12_400_000)
    ('0 B', '812 B', '12.4 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} B" if unit == "B" else f"{significant(value)} {unit}"


def shape(sizes: Iterable[int]) -> str:
    """Format the shape of a tensor.

    >>> shape((32, 32, 3)), shape(())
    ('32×32×3', '')
    """
    return "×".join(map(str, sizes))


def type_name(value: object) -> str:
    """Name the type of a value, for messages.

    >>> type_name(None), type_name([1])
    ('None', 'list')
    """
    return "None" if value is None else type(value).__name__


def interval(low: float, high: float, show: Callable[[float], str]) -> str:
    """Format ``low`` to ``high`` with the unit once.

    >>> interval(0.96, 0.97, lambda value: f"{100 * value:.1f} %")
    '96.0–97.0 %'
    >>> interval(-2.0, -1.0, "{:.1f}".format), interval(950, float("inf"), count)
    ('-2.0 to -1.0', '950–never')
    """
    first, last = show(low), show(high)
    unit = last.rpartition(" ")[2]
    if " " in last and first.endswith(f" {unit}"):
        first = first.removesuffix(f" {unit}")
    return f"{first} to {last}" if low < 0 else f"{first}–{last}"


def p_value(p: float) -> str:
    """Format a p-value.

    >>> p_value(0.0312), p_value(0.00002), p_value(1.0)
    ('p = 0.031', 'p < 0.001', 'p = 1')
    """
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.2g}"


def signed(value: float, show: Callable[[float], str]) -> str:
    """Format with a sign, unless the value is shown as zero.

    >>> signed(0.25, str), signed(-0.25, str), signed(-0.0, str)
    ('+0.25', '−0.25', '0.0')
    """
    shown = show(abs(value))
    if shown == show(0.0):
        return shown
    return f"{'+' if value > 0 else '−'}{shown}"


def decibels(value: float) -> float:
    """Return 10·log₁₀ of a KID, as the paper plots it; minus infinity for zero or less.

    An estimate of zero or less means that no distance can be seen. Minus infinity keeps the order:
    it is better than every other value. NaN stays NaN.

    >>> round(decibels(0.158), 2), decibels(1.0), decibels(0.0), decibels(-0.001)
    (-8.01, 0.0, -inf, -inf)
    """
    if math.isnan(value):
        return math.nan
    return 10 * math.log10(value) if value > 0 else -math.inf
