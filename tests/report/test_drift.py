"""The drawing of drift: a place for every node, gaps where an error is exact or not finite, layers named."""

from __future__ import annotations

from tapestry.migration.result import DriftPoint
from tapestry.report.drift import drift_drawing


def points() -> list[DriftPoint]:
    modules = ["blocks.0.up", "blocks.0", "blocks.1.up", "blocks.1", "blocks.2", "blocks.3.down", "head"]
    return [DriftPoint(f"n{k}", module, 10.0**-k, 1e-7) for k, module in enumerate(modules)]


def test_errors_fall_from_left_to_right() -> None:
    found = drift_drawing(points(), 980.0)
    heights = [spot.target for spot in found.spots]
    assert None not in heights
    assert heights == sorted(heights, key=float)  # type: ignore[arg-type]
    assert len({spot.source for spot in found.spots}) == 1
    assert [spot.x for spot in found.spots] == sorted(spot.x for spot in found.spots)
    assert found.spots[-1].left + found.spots[-1].width <= found.right + 1e-6
    assert found.target_line.count("L") == len(found.spots) - 1


def test_layers_are_parts_of_the_module_tree() -> None:
    found = drift_drawing(points(), 980.0)
    assert [layer.label for layer in found.layers] == ["0", "1", "2", "3", "head"]


def test_what_is_exact_or_not_finite_has_no_place() -> None:
    broken = [*points()[:2], DriftPoint("exact", "a", 0.0, 0.0), DriftPoint("lost", "a", float("inf"), 1e-7)]
    found = drift_drawing(broken, 344.0)
    assert [spot.target is None for spot in found.spots] == [False, False, True, True]
    assert found.target_line.count("M") == 1
    assert "inf" in found.spots[3].text or "∞" in found.spots[3].text
