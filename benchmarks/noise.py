"""Speed of secure noise: values of the discrete Gaussian from Terrine, and from OpenDP's sampler in the same run.

    python benchmarks/noise.py [--repeats 7]

Both draw on the lattice that votes share, exactly, from the operating system's entropy. NumPy's generator, neither
exact nor secure, is the floor. CPU seconds of one thread are counted; microseconds a value, median over the repeats.
"""

import time
from collections.abc import Callable

import numpy as np
from cells import common_options, heading, row, times
from opendp.domains import atom_domain, vector_domain
from opendp.measurements import make_gaussian
from opendp.metrics import l2_distance
from opendp.mod import enable_features

from terrine.privacy.noise import SecureNoise, lattice_step

VALUES = 100_000
SIGMAS = (40.0, 64.0, 127.0)


def main() -> None:
    """Measure and print the table."""
    options = common_options(__doc__, repeats=7).parse_args()
    enable_features("contrib")
    heading("σ", "Terrine, µs", "OpenDP, µs", "times faster", "NumPy, µs")
    for sigma in SIGMAS:
        domain = vector_domain(atom_domain(T="i64"))
        theirs = make_gaussian(domain, l2_distance(T=float), scale=sigma / lattice_step(sigma))
        generator = np.random.default_rng()

        def each(draw: Callable[[], object]) -> float:
            return float(np.median(times(draw, options.repeats, time.process_time)) / VALUES * 1e6)

        ours = each(lambda sigma=sigma: SecureNoise().gaussian(VALUES, sigma))
        other = each(lambda theirs=theirs: theirs([0] * VALUES))
        floor = each(lambda generator=generator: generator.standard_normal(VALUES))
        row(f"{sigma:g}", f"{ours:.2f}", f"{other:.1f}", f"{other / ours:.0f}", f"{floor:.3f}")


if __name__ == "__main__":
    main()
