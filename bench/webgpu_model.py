"""MiniLM through Tapestry on WebGPU next to onnxruntime's WebGPU providers: in a browser and natively.

Run it as ``python bench/webgpu_model.py [--sides browser native] [--rounds N] [--json FILE]`` on an otherwise idle
machine. ``browser``: onnxruntime-web against the device ``browser``, each in a tab of the same Chromium with the same
flags. ``native``: onnxruntime-webgpu against ``webgpu:0``, both on the adapter that ``VK_DRIVER_FILES`` names, by
default SwiftShader's from the Chromium package, since onnxruntime-webgpu takes no other that runs on a processor. One
sentence of 32 tokens, float32, called in turn; inputs up and results down are part of a run. The peers are installed
apart from everything else, from the lock files in bench/webgpu_peers, into ``--peers``. Every side's result is checked
against PyTorch.
"""

from __future__ import annotations

import argparse
import hashlib
import http.server
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tapestry.migration.migrate import migrate
from tapestry.models.load import load_model
from tapestry.program.capture import capture
from tapestry.runtime.browser.chromium import Chromium

HERE = Path(__file__).parent / "webgpu_peers"
SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
PATIENCE = 300.0
Call = Callable[[], np.ndarray]
#: Milliseconds of a run, and its result.
Timed = Callable[[], tuple[float, np.ndarray]]


class Peer:
    """MiniLM for the peers: an ONNX file, inputs by name, and what PyTorch gives."""

    def __init__(self, folder: Path) -> None:
        loaded = load_model("demo:minilm")
        self.given = loaded.inputs[0]
        call = self.given.calls[0]
        self.module, self.args, self.kwargs = loaded.module.eval(), call.args, dict(call.kwargs)
        with torch.no_grad():
            self.want = first(self.module(*self.args, **self.kwargs)).numpy()
        exported: Any = torch.onnx.export(self.module, self.args, kwargs=self.kwargs, dynamo=True, verbose=False)
        self.path = folder / "model.onnx"
        self.path.write_bytes(exported.model_proto.SerializeToString())
        given = [*self.args, *self.kwargs.values()]
        names = [entry.name for entry in exported.model_proto.graph.input]
        self.inputs = {name: tensor.numpy() for name, tensor in zip(names, given, strict=True)}

    def check(self, got: np.ndarray, side: str) -> None:
        """RuntimeError where a side's result is not PyTorch's, to 1e-3 of its largest element."""
        error = float(np.abs(got.reshape(self.want.shape) - self.want).max() / np.abs(self.want).max())
        if not error < 1e-3:
            raise RuntimeError(f"{side}: expected PyTorch's result, got one that is off by {error:.2g}")


def first(result: object) -> torch.Tensor:
    """The first tensor of a model's result."""
    if isinstance(result, torch.Tensor):
        return result
    return next(entry for entry in (result.values() if isinstance(result, dict) else result) if entry is not None)  # type: ignore[attr-defined]


@contextmanager
def tapestry(peer: Peer, device: str) -> Iterator[tuple[Timed, str]]:
    """The model migrated to a device."""
    program = capture(peer.module, peer.args, peer.kwargs)
    with migrate(program, device, [peer.given], variants=0) as moved:
        coverage = moved.result.coverage

        def run() -> tuple[float, np.ndarray]:
            begin = time.perf_counter()
            result = moved.executable(*peer.args, **peer.kwargs)
            return (time.perf_counter() - begin) * 1e3, first(result).numpy()

        yield (
            run,
            f"{coverage.compute_on_target} of {coverage.compute_total} compute nodes, {coverage.launches} launches",
        )


class PageServer(http.server.ThreadingHTTPServer):
    """Serves the peer's page, and passes questions and answers between it and this script."""

    daemon_threads = True

    def __init__(self, peer: Peer, dist: Path) -> None:
        super().__init__(("127.0.0.1", 0), PageHandler)
        self.files = {"/": HERE / "page.html", "/model.onnx": peer.path}
        self.dist = dist
        values = {name: {"values": v.ravel().tolist(), "shape": list(v.shape)} for name, v in peer.inputs.items()}
        self.given = json.dumps(values).encode()
        self.asked: queue.Queue[str] = queue.Queue()
        self.answers: queue.Queue[tuple[str, str, bytes]] = queue.Queue()

    def answer(self, wanted: str) -> tuple[str, bytes]:
        """The page's next message. RuntimeError when it is another one, or none comes."""
        kind, query, body = self.answers.get(timeout=PATIENCE)
        if kind != wanted:
            raise RuntimeError(f"the page failed: {body.decode(errors='replace')[:500]}")
        return query, body


class PageHandler(http.server.BaseHTTPRequestHandler):
    server: PageServer

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        path = urllib.parse.urlsplit(self.path).path
        if path == "/next":
            self._send(self.server.asked.get().encode(), "text/plain")
        elif path == "/inputs.json":
            self._send(self.server.given, "application/json")
        else:
            file = self.server.files.get(path) or self.server.dist / Path(path).name
            kinds = {".html": "text/html", ".mjs": "text/javascript", ".wasm": "application/wasm"}
            if file.is_file():
                self._send(file.read_bytes(), kinds.get(file.suffix, "application/octet-stream"))
            else:
                self.send_error(404)

    def do_POST(self) -> None:
        split = urllib.parse.urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.answers.put((split.path.removeprefix("/"), split.query, body))
        self._send(b"", "text/plain")

    def _send(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def onnxruntime_web(peer: Peer, folder: Path) -> Iterator[Timed]:
    """onnxruntime-web in a tab of its own."""
    server = PageServer(peer, installed_web(folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser = Chromium(f"http://127.0.0.1:{server.server_port}/")
    try:
        server.answer("ready")

        def run() -> tuple[float, np.ndarray]:
            server.asked.put("run")
            query, body = server.answer("ran")
            return float(urllib.parse.parse_qs(query)["ms"][0]), np.frombuffer(body, np.float32)

        yield run
    finally:
        server.asked.put("end")
        browser.kill()
        server.shutdown()
        server.server_close()


@contextmanager
def onnxruntime_webgpu(peer: Peer, folder: Path) -> Iterator[Timed]:
    """onnxruntime-webgpu in a process of its own. RuntimeError when it falls back to another provider."""
    with tempfile.TemporaryDirectory() as scratch:
        inputs = Path(scratch, "inputs.npz")
        np.savez(inputs, **peer.inputs)  # type: ignore[arg-type]
        environment = {**os.environ, "PYTHONPATH": str(installed_native(folder))}
        process = subprocess.Popen(
            [sys.executable, str(HERE / "native.py"), str(peer.path), str(inputs), scratch],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            providers = process.stdout.readline().strip()
            if not providers.startswith("WebGpu"):
                raise RuntimeError(f"onnxruntime-webgpu: expected the WebGPU provider, got {providers or 'none'}")

            def run() -> tuple[float, np.ndarray]:
                process.stdin.write("run\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
                spent = float(process.stdout.readline())  # type: ignore[union-attr]
                return spent, np.load(Path(scratch, "native.npy"))

            yield run
        finally:
            process.stdin.close()
            process.wait(30)
            process.stdout.close()


def installed_web(folder: Path) -> Path:
    """onnxruntime-web's files, installed by npm if need be."""
    home = folder / f"web-{digest(HERE / 'package-lock.json')}"
    if not (home / "done").exists():
        home.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            (home / name).write_bytes((HERE / name).read_bytes())
        subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=home, check=True, stdout=2)
        (home / "done").touch()
    return home / "node_modules/onnxruntime-web/dist"


def installed_native(folder: Path) -> Path:
    """onnxruntime-webgpu's files, installed by pip if need be."""
    home = folder / f"native-{digest(HERE / 'requirements.txt')}"
    if not (home / "done").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run([*command, "--target", str(home), "-r", str(HERE / "requirements.txt")], check=True, stdout=2)
        (home / "done").touch()
    return home


def digest(file: Path) -> str:
    """A name for what a lock file says."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def measure(sides: dict[str, Timed], peer: Peer, rounds: int) -> dict[str, list[float]]:
    """Milliseconds by side, of interleaved rounds after two that are not counted."""
    found: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds + 2):
        for side, run in sides.items():
            spent, result = run()
            peer.check(result, side)
            if number >= 2:
                found[side].append(spent)
    return found


def compare(title: str, ours: tuple[str, str], peer_name: str, opened: Any, peer: Peer, rounds: int) -> dict[str, Any]:
    """One pair, measured and printed."""
    name, device = ours
    with ExitStack() as stack:
        run, what = stack.enter_context(tapestry(peer, device))
        sides = {peer_name: stack.enter_context(opened), name: run}
        found = measure(sides, peer, rounds)
    medians = {side: statistics.median(values) for side, values in found.items()}
    ratio = medians[peer_name] / medians[name]
    print(f"\n{title}: {what}, median of {rounds} (least)")
    for side, values in found.items():
        print(f"  {side:24} {medians[side]:9.1f} ms  ({min(values):.1f})")
    print(f"  {peer_name} over {name}: {ratio:.2f}")
    return {"ms": medians, "least": {side: min(values) for side, values in found.items()}, "ratio": ratio}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sides", nargs="*", default=["browser", "native"], choices=["browser", "native"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peers", type=Path, default=Path(tempfile.gettempdir()) / "tapestry-webgpu-peers")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if SWIFTSHADER.exists():
        os.environ.setdefault("VK_DRIVER_FILES", str(SWIFTSHADER))
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        peer = Peer(Path(scratch))
        pairs: dict[str, Callable[[], dict[str, Any]]] = {
            "browser": partial(
                compare, "In the same Chromium", ("tapestry", "browser"), "onnxruntime-web",
                onnxruntime_web(peer, options.peers), peer, options.rounds,
            ),
            "native": partial(
                compare, f"Natively, on {os.environ.get('VK_DRIVER_FILES', 'the default adapter')}",
                ("tapestry", "webgpu:0"), "onnxruntime-webgpu", onnxruntime_webgpu(peer, options.peers), peer,
                options.rounds,
            ),
        }  # fmt: skip
        for side in options.sides:
            rows[side] = pairs[side]()
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
