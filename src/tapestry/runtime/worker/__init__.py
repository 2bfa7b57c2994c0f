"""Devices in child processes: a hang or a crash of a driver costs the child, never the job.

Modules: device (the parent's side), process (starting and ending the child), serve and __main__ (the child's side).
"""
