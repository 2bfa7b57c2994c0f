"""How numbers read on a page: two or three significant digits, with units, the same everywhere.

Not here: numbers for programs (the JSON keeps every digit).
"""

from __future__ import annotations

import math

#: What stands where there is no number.
NONE = "–"
#: Units of measured times, in seconds, the longest first.
UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}


def error(value: float | None) -> str:
    """An error or a bound in two significant digits: ``5.4e-6``, ``0.28``, ``6,800``, ``0``, ``∞``, ``–`` for None."""
    if value is None:
        return NONE
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0.0:
        return "0"
    rounded = float(f"{value:.1e}")
    if 1e-3 <= abs(rounded) < 1e4:
        return f"{rounded:.4f}"[: _places(rounded)].rstrip(".") if abs(rounded) < 1 else _plain(rounded)
    mantissa, exponent = f"{rounded:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _places(value: float) -> int:
    """How many characters of ``0.0012`` hold two significant digits."""
    lead = -math.floor(math.log10(abs(value)))
    return (1 if value < 0 else 0) + 2 + lead + 1


def _plain(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 10 else f"{value:,.0f}"


def share(value: float | None) -> str:
    """A fraction of 0 to 1 in per cent; never rounded up to all nor down to nothing: ``99.9%``, ``<0.1%``."""
    if value is None or math.isnan(value):
        return NONE
    if value >= 1.0:
        return "100%"
    if value <= 0.0:
        return "0%"
    if value < 0.001:
        return "<0.1%"
    text = f"{math.floor(value * 1000 + 1e-9) / 10:.1f}"
    return text.removesuffix(".0") + "%"


def count(value: int) -> str:
    """A whole number with thousands separated: ``2,500``."""
    return f"{value:,}"


def seconds(value: float | None) -> str:
    """A duration: ``230 ms``, ``1.8 s``, ``2 min 14 s``, ``1 h 02 min``."""
    if value is None or not math.isfinite(value):
        return NONE
    if value < 0.0005:
        return "<1 ms" if value > 0 else "0 s"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def duration(value: float | None) -> str:
    """A measured time in three significant digits: ``850 ns``, ``12.3 µs``, ``1.24 ms``, ``3.5 s``, ``–`` for None."""
    if value is None or not math.isfinite(value):
        return NONE
    for unit, length in UNITS.items():
        if abs(value) >= length * 0.9995:
            return f"{_three(value / length)} {unit}"
    return "0 s"


def rate(per_second: float | None) -> str:
    """Billions a second in three significant digits: ``0.0123``, ``4.56``, ``1,230``, ``–`` for None."""
    return NONE if per_second is None else _three(per_second / 1e9)


def _three(value: float) -> str:
    if value == 0.0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(float(f"{value:.2e}")))))
    return f"{value:,.{places}f}"


def of_roof(value: float | None) -> str:
    """A share of a roof in per cent, which may be more than all: ``0.4%``, ``37%``, ``140%``."""
    if value is None or math.isnan(value):
        return NONE
    return share(value) if value < 0.0995 else f"{math.floor(value * 100 + 1e-9)}%"


def nbytes(value: int) -> str:
    """A size: ``512 B``, ``1.2 KiB``, ``74 MiB``."""
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 9.95 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def plural(number: int, one: str, many: str = "") -> str:
    """``1 node``, ``2,500 nodes``; ``many`` where adding an s is wrong."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"
