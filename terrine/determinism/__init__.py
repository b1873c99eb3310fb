"""Equal bits on every machine: seeds, counter-based random numbers, portable mathematics and parallel work."""
