"""Valid calls of any ATen overload, from its schema and from PyTorch's own table of operator samples.

``calls.calls_for`` is the way in. Not here: variants of calls, and their replay.
"""
