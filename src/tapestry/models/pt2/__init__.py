"""``.pt2`` files: programs saved by torch.export.save, read without running anything that they bring.

A .pt2 file is a zip archive. It can run code in more ways than pickles: a name in its graph becomes Python source, an
operator is looked up by a dotted path, a size is an expression that sympy evaluates, guards are source text. So the
archive is listed first (archive), its records are vetted (program, payload), its sample inputs are read as data
(samples), and torch.export.load is given only a clean copy of what was understood (load).
"""
