"""Repro bundles: a failing case reduced on the device to little, as a directory that a stranger can read and run.

``make_repro`` (make) is what other layers call; ``reduce_case`` (reduce) is the pure part, which takes any ``run``.
"""
