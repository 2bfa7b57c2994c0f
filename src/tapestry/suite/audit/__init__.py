"""Mutation testing of suites: how many known faults of platforms do its cases find.

`faults` reads them, `mutants` tries one of them on calls, `chains` on several calls in one part, `run` all of them,
`result` is what is reported.
"""
