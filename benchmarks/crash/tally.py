"""Counts of outcomes and faults, saved after each repetition so that an interrupted part can resume."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.cells import Cells
from benchmarks.crash.checks import FAULTS


class Tally:
    """Counts of a part, with a line in a file for each time, which is not done again where the file has it.

    where: how often at which place. wrong: how often which fault. Both count what was asked for, done now or before.
    """

    def __init__(self, path: Path) -> None:
        self._cells = Cells(path)
        self.where, self.wrong = Counter[str](), Counter[str]()
        self.times = 0

    def count(self, key: str, once: Callable[[], tuple[str, Iterable[str]]]) -> None:
        """Do it once and keep where that was and what was wrong, or take up what is kept of it."""

        def done() -> dict[str, object]:
            where, wrong = once()
            return {"where": where, "wrong": sorted(wrong)}

        known = key in self._cells
        line = self._cells.get(key, done)
        self.where[line["where"]] += 1
        self.wrong.update(line["wrong"])
        self.times += 1
        if not known:
            told = ", ".join(line["wrong"]) or "well"
            print(f"{self.times:4}, {key}, {line['where']}: {told}; {self.wrong.total()} wrong so far", flush=True)

    def tables(self, what: str) -> str:
        """Return the two tables of a part."""
        lines = ["", f"| {what} | times |", "|---|---:|"]
        lines += [f"| {place} | {count} |" for place, count in sorted(self.where.items())]
        lines += [f"| all | {self.times} |", "", "| of them | times |", "|---|---:|"]
        lines += [f"| {fault} | {self.wrong[fault]} |" for fault in dict.fromkeys([*FAULTS, *self.wrong])]
        return "\n".join(lines)
