"""Faults injected into a target, so that a migration can be watched finding them.

Parts of a program as a broken platform sees them (parts), what such a platform computes (platform).
"""
