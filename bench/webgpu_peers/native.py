"""The native peer, in a process of its own: onnxruntime with the WebGPU provider, run whenever a line is read.

Arguments: the model, a .npz of its inputs, a folder for the result. Prints the providers, then the milliseconds of each
run. Not here: installing it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime


def main() -> None:
    """Serve runs until standard input ends."""
    model, inputs, folder = sys.argv[1:]
    feeds = dict(np.load(inputs))
    session = onnxruntime.InferenceSession(model, providers=["WebGpuExecutionProvider"])
    print(",".join(session.get_providers()), flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        results = session.run(None, feeds)
        spent = time.perf_counter() - begin
        np.save(Path(folder, "native.npy"), results[0])
        print(spent * 1e3, flush=True)


if __name__ == "__main__":
    main()
