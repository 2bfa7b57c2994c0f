"""Composition: several calls that run as one part, and the faults that show only then.

`judging` judges the results of a graph of several calls by a running error bound, `carve` cuts pairs and small regions
out of a program, and `chains` builds parts around the operators that a fault names.
"""
