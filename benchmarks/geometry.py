"""Features of images of several sizes: seconds for 1,000 images, and the most memory that their process took.

    python benchmarks/geometry.py [--sizes 28 64 128 224] [--images 256]

Features are those that sums over records and votes are made of (`terrine.models.backbone`), by one thread. Above 32
pixels a side they come from Fourier transforms; `convolutions` is the same block convolved, in the same run.
Each figure comes from a separate process. Peak memory is the kernel's figure, including Python and torch; `base` is
the peak without images. Processor seconds are counted, so that other work disturbs less.
"""

import argparse
import resource
import subprocess
import sys
import time

import numpy as np


def measure(size: int, count: int, convolved: bool) -> None:
    """Print processor seconds for 1,000 images of size x size, and this process's peak memory in MiB."""
    import torch

    from terrine.models.architecture import build_backbone
    from terrine.models.backbone import features_one_by_one

    torch.set_num_threads(1)
    backbone = build_backbone("scattering", channels=1, size=size, seed=0, projection=200)
    if convolved:
        backbone.network.spectra = None
    images = np.random.default_rng(0).integers(0, 256, (count, 1, size, size), dtype=np.uint8)
    before, begin = peak(), time.process_time()
    rows = sum(len(block) for block in features_one_by_one(backbone, images, lambda features: features))
    seconds = (time.process_time() - begin) * 1000 / rows
    how = "convolutions" if convolved else "usual       "
    print(f"{size:4d} px, {how}  {seconds:7.2f} s for 1,000 images  {peak():5.0f} MiB (base {before:.0f})", flush=True)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[28, 64, 128, 224])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        return measure(int(asked.one[0]), asked.images, asked.one[1] == "convolved")
    for size in asked.sizes:
        for how in ("usual", "convolved") if size > 32 else ("usual",):
            own = ["--one", str(size), how, "--images", str(asked.images)]
            subprocess.run([sys.executable, __file__, *own], check=True)


if __name__ == "__main__":
    main()
