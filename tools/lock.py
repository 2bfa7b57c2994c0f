"""Resolve the lock files from pyproject.toml (run by ``make lock``).

``requirements.lock`` is everything that the demo and the tests need. ``requirements-cpu.lock`` is torch's CPU build,
which lies outside the public index: installed first where pip is set up to find it, it satisfies the main lock.
``requirements-cuda.lock`` is what the index's Linux build of torch needs in addition: several GB that no test uses.

The locks hold names, versions and SHA-256 hashes, and no addresses: where packages come from is pip's own
configuration. They are complete, so that pip installs them with ``--no-deps --require-hashes``. Arguments go to
``uv pip compile``: without any, versions already locked stay as they are; ``--upgrade`` renews them all.

Not here: any installation.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAIN = ROOT / "requirements.lock"
CPU = ROOT / "requirements-cpu.lock"
CUDA = ROOT / "requirements-cuda.lock"
EXTRAS = (
    *("bringup", "opencl", "webgpu", "tvm", "onnxruntime", "openvino", "executorch", "hf", "demo", "smollm2", "schema"),
    *("place", "remote", "report", "dev"),
)

#: The demo models' packages are read as folders of files and never imported, so what they would import is left out.
EXCLUDES = ("sentence-transformers", "llm", "llama-cpp-python")

#: What only the CUDA build of torch needs.
CUDA_ONLY = re.compile(r"^(nvidia-|cuda-|triton\b)")

HEADER = "# Written by `make lock`. Install with: pip install --require-hashes --no-deps -r {name}\n"

Lock = dict[str, tuple[str, frozenset[str]]]
"""By requirement name: its line (name, version, marker) and its hashes."""


def main(arguments: list[str]) -> None:
    """Write the locks; subprocess.CalledProcessError when the resolver or pip fails."""
    resolved = resolve({**read(MAIN), **read(CUDA)}, arguments)
    cpu_line = f"{resolved['torch'][0]}+cpu ; sys_platform == 'linux'"
    old_line, cpu_hashes = read(CPU).get("torch", ("", frozenset[str]()))
    if old_line != cpu_line:
        cpu_hashes = frozenset({served_here(cpu_line.partition(" ;")[0])})
    write(CPU, {"torch": (cpu_line, cpu_hashes)})
    # A CPU build that an index serves with its hash is then also a candidate for the main lock.
    resolved["torch"] = (resolved["torch"][0], resolved["torch"][1] | cpu_hashes)
    write(MAIN, {name: entry for name, entry in resolved.items() if not CUDA_ONLY.match(name)})
    write(CUDA, {name: entry for name, entry in resolved.items() if CUDA_ONLY.match(name)})


def resolve(old: Lock, arguments: list[str]) -> Lock:
    """Everything that pyproject.toml asks for, with the hashes of all the files that the index has."""
    with tempfile.TemporaryDirectory() as folder:
        output, excludes = Path(folder, "resolved.txt"), Path(folder, "excludes.txt")
        output.write_text(render(old))
        excludes.write_text("\n".join(EXCLUDES))
        subprocess.run(
            [
                *(sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--quiet", "--output-file", output),
                *(f"--extra={extra}" for extra in EXTRAS),
                *("--universal", "--python-version=3.11", "--fork-strategy=fewest", f"--excludes={excludes}"),
                *("--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"),
                *arguments,
            ],
            cwd=ROOT,
            check=True,
        )
        return read(output)


def served_here(requirement: str) -> str:
    """The hash of the file that this machine's pip picks for a requirement."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--dest", folder, requirement], check=True)
        (wheel,) = Path(folder).iterdir()
        with wheel.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def read(path: Path) -> Lock:
    """A lock file; empty if there is none. ValueError for a requirement that is locked twice."""
    lock: Lock = {}
    text = path.read_text() if path.exists() else ""
    for entry in re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", " ").splitlines():
        line, *hashes = (part.strip() for part in entry.split("--hash=sha256:"))
        name = re.split(r"[=\[ ;]", line, maxsplit=1)[0]
        if name in lock:
            raise ValueError(f"{path.name}: expected one version of {name}, got {lock[name][0]} and {line}")
        lock[name] = (line, frozenset(hashes))
    return lock


def render(lock: Lock) -> str:
    """The text of a lock, sorted by name."""
    return "".join(
        " \\\n    ".join([line, *(f"--hash=sha256:{digest}" for digest in sorted(hashes))]) + "\n"
        for _, (line, hashes) in sorted(lock.items())
    )


def write(path: Path, lock: Lock) -> None:
    """Write a lock file. ValueError for an entry without a hash, or with anything but name, version and marker."""
    for line, hashes in lock.values():
        if not hashes or not re.fullmatch(r"[\w.\[\]-]+==[\w.+!]+( ; [^/@]+)?", line):
            raise ValueError(f"{path.name}: expected name==version with hashes, got {line!r} with {len(hashes)}")
    path.write_text(HEADER.format(name=path.name) + render(lock))


if __name__ == "__main__":
    main(sys.argv[1:])
