"""Composite operators as numerically stable formulas in bounded arithmetic, by canonical operator name.

A formula is only asked for its bound; the expected value is always the oracle's.
"""

from __future__ import annotations

from tapestry.numerics.formulas import (
    activations,
    arithmetic,
    attention,
    class_losses,
    distances,
    histograms,
    losses,
    moments,
    normalisation,
    recurrent,
    scans,
)
from tapestry.numerics.formulas.call import Formula, FormulaCall

FORMULAS: dict[str, Formula] = {
    **activations.FORMULAS,
    **arithmetic.FORMULAS,
    **attention.FORMULAS,
    **class_losses.FORMULAS,
    **distances.FORMULAS,
    **histograms.FORMULAS,
    **losses.FORMULAS,
    **moments.FORMULAS,
    **normalisation.FORMULAS,
    **recurrent.FORMULAS,
    **scans.FORMULAS,
}

__all__ = ["FORMULAS", "Formula", "FormulaCall"]
