"""Work through a queue of GPU jobs for some minutes, and keep what is finished.

    python -m benchmarks.gpu --minutes 10 --out FOLDER --data FOLDER [--jobs colour diet] [--small]

Jobs are in `jobs.JOBS`, the most valuable first. Figures are lines of FOLDER/gpu.jsonl, each as soon as it is known; a
job with a line of its name is not made again, so the same command goes on elsewhere. Jobs that need no GPU for most of
their time run beside the next one. FOLDER may hold the weights of an earlier session.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

BESIDE = ("colour-heads", "diet-seeds", "dpsd-batch", "dpsd-sample")
"""Jobs that run beside the ones after them."""


def main() -> None:
    """Run the queue, or one job of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--commit", default="")
    parser.add_argument("--jobs", nargs="*")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try jobs on a CPU")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    if asked.job:
        one(asked)
        return
    known = asked.out / "gpu.jsonl"
    done = {json.loads(line)["job"] for line in known.read_text().splitlines()} if known.is_file() else set()
    from benchmarks.gpu.jobs import JOBS

    beside: list[tuple[str, subprocess.Popen[bytes]]] = []

    def left() -> float:
        return 60 * asked.minutes - (time.monotonic() - begun)

    for name in asked.jobs or JOBS:
        if f"{name}:done" in done:
            continue
        if left() < 10:
            break
        command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(asked.out), "--data", str(asked.data)]
        command += ["--job", name, "--minutes", str(left() / 60), "--commit", asked.commit]
        command += ["--small"] if asked.small else []
        process = subprocess.Popen(command)
        if name in BESIDE:
            beside.append((name, process))
            continue
        wait(process, left())
    for _, process in beside:
        wait(process, left())


def wait(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Wait for a job, and end it when time is up."""
    try:
        process.wait(max(1.0, seconds))
    except subprocess.TimeoutExpired:
        process.kill()


def one(asked: argparse.Namespace) -> None:
    """Run one job in this process."""
    begun = time.monotonic()
    import torch

    from benchmarks.gpu.jobs import JOBS, PROBES, Place

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not asked.small:
        torch.set_num_threads(max(1, (os.cpu_count() or 2) - 2))
    card = torch.cuda.get_device_name(0) if device.type == "cuda" else "none"

    def save(name: str, figures: dict[str, Any]) -> None:
        line = {"job": name, **figures, "card": card, "torch": torch.__version__, "commit": asked.commit}
        with (asked.out / "gpu.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{time.monotonic() - begun:6.1f} s  {json.dumps(line)}", flush=True)

    work = Path(tempfile.gettempdir()) / ("terrine-gpu-small" if asked.small else "terrine-gpu")
    work.mkdir(exist_ok=True)
    place = Place(asked.data, asked.out, work, device, asked.small, begun + 60 * asked.minutes)
    try:
        (JOBS | PROBES)[asked.job](place, save)
    except Exception:
        traceback.print_exc()
        save(f"{asked.job}:failed", {"error": traceback.format_exc().splitlines()[-1]})
        sys.exit(1)
    memory = round(torch.cuda.max_memory_allocated() / 2**30, 2) if device.type == "cuda" else 0
    save(f"{asked.job}:done", {"seconds": round(time.monotonic() - begun, 1), "gigabytes": memory})


if __name__ == "__main__":
    main()
