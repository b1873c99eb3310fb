"""The same bits anywhere: seeds, counters, portable mathematics, and parallel work that changes no result."""
