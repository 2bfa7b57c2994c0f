"""Variants: calls of other value, shape, layout and attribute classes, derived by what a call's arguments mean.

`call` holds the records, `meaning` what arguments mean, one module each class; `derive` puts them in order under a
budget. Not here: running and judging them.
"""
