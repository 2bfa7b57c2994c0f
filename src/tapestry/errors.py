"""The errors Tapestry raises on purpose: each says what was expected, what was got, and what to do.

Not for bugs: an exception that is not a TapestryError is a fault of ours.
"""

from __future__ import annotations


class TapestryError(Exception):
    """Base of all errors that a user can act on. ``exit_code`` is what the command line returns for it."""

    exit_code = 2


class UsageError(TapestryError):
    """The request itself is wrong: a missing file, a bad argument, a suite of another model."""


class FormatError(UsageError):
    """A stored file is truncated, damaged, or of a version this release does not read."""


class CaptureError(UsageError):
    """A model cannot be captured; the message names the line of the model that stands in the way."""


class InputError(UsageError):
    """An executable was given other shapes, dtypes or structure than it was captured with."""


class EnvironmentProblem(TapestryError):
    """Something is missing on this machine; the message holds the install line or the setting to change."""

    exit_code = 3


class UnsupportedError(TapestryError):
    """A backend or a device cannot do this, and says why. Becomes the verdict ``unsupported``."""


class CompileError(TapestryError):
    """A backend took a region and failed to compile it; the message is the compiler's own reason."""


class DeviceError(TapestryError):
    """A device answered a command with an error; the device itself is still usable."""


class DeviceLostError(DeviceError):
    """The device, its worker process or the connection to it is gone. Becomes the verdict ``crashed``."""


class ConnectionLostError(DeviceLostError):
    """The connection to a device's agent or tab broke, which says nothing about the device: restart and try again."""


class DeviceTimeoutError(DeviceLostError):
    """The device did not answer in time and its worker was killed. Becomes the verdict ``timeout``."""
