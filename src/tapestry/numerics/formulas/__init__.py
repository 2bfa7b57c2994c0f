"""Composite operators as numerically stable formulas in bounded arithmetic, by canonical operator name.

A formula is only asked for its bound; the expected value is always the oracle's.
"""

from __future__ import annotations

from tapestry.numerics.formulas import activations, arithmetic, attention, normalisation, reductions
from tapestry.numerics.formulas.call import Formula, FormulaCall

FORMULAS: dict[str, Formula] = {
    **activations.FORMULAS,
    **arithmetic.FORMULAS,
    **attention.FORMULAS,
    **normalisation.FORMULAS,
    **reductions.FORMULAS,
}

__all__ = ["FORMULAS", "Formula", "FormulaCall"]
