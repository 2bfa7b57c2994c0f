"""The beginning of a hand-written kernel, made from the cases that it must pass.

Which operator is meant (operator), what its cases have in common (form), and the text of the file (text).
"""
