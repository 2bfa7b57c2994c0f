"""``python -m tapestry.runtime.worker``: serves a device to the process that started it, or lists the devices here.

Started by tapestry itself. The drivers and loaders it may import beyond the built-in ones stand on its command line.
"""

from __future__ import annotations

import argparse
import sys

import msgspec

from tapestry.errors import EnvironmentProblem
from tapestry.runtime.drivers.host import loader_prefixes, register_loader_prefix
from tapestry.runtime.drivers.listing import DeviceListing
from tapestry.runtime.drivers.registry import DriverEntry, list_kind, register_driver
from tapestry.runtime.worker.serve import serve


def main() -> None:
    """Reads the command line and serves or lists."""
    parser = argparse.ArgumentParser(prog="tapestry.runtime.worker")
    parser.add_argument("--fd", type=int, help="the inherited socket to serve")
    parser.add_argument("--parent", type=int, help="the process whose end is this one's end")
    parser.add_argument("--driver", action="append", default=[], metavar="KIND=MODULE:FUNCTION")
    parser.add_argument("--loader-prefix", action="append", default=[], metavar="PACKAGE.")
    parser.add_argument("--list", metavar="KIND", help="print the devices of one kind as JSON and leave")
    options = parser.parse_args()
    for entry in options.driver:
        register_driver(DriverEntry.parse(entry))
    for prefix in options.loader_prefix:
        if prefix not in loader_prefixes():
            register_loader_prefix(prefix)
    if options.list is not None:
        sys.stdout.buffer.write(msgspec.json.encode(_list(options.list)))
    elif options.fd is None or options.parent is None:
        parser.error("expected --fd and --parent, or --list; it is started by tapestry itself")
    else:
        serve(options.fd, options.parent)


def _list(kind: str) -> list[DeviceListing]:
    try:
        return list_kind(kind)
    except EnvironmentProblem as problem:
        return [DeviceListing(kind, kind, "", False, str(problem))]


if __name__ == "__main__":
    main()
