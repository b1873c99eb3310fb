"""SIGKILL of a party at each moment that the tests know, with two busy loops beside it."""

import traceback
from multiprocessing import get_context
from pathlib import Path

from benchmarks.crash.tally import Tally


def kill_parties(folder: Path, times: int, tally: Tally) -> None:
    """Kill so many times at each moment; count of whom, and what was wrong after."""
    from tests.party_kills import OF_ONE_ROUND, OF_ROUNDS, check_killed

    busy = [get_context("fork").Process(target=_loop, daemon=True) for _ in range(2)]
    for process in busy:
        process.start()
    try:
        for number in range(times):
            for place, (case, terms, kill) in enumerate([*OF_ONE_ROUND, *OF_ROUNDS]):

                def once(
                    number: int = number, place: int = place, case: str = case, terms=terms, kill=kill
                ) -> tuple[str, set[str]]:
                    session = folder / f"session-{number}-{place}"
                    session.mkdir()
                    wrong = set()
                    try:
                        check_killed(case, terms, kill, session)
                    except (Exception, AssertionError) as error:
                        wrong.add("not completed")
                        print(session, "".join(traceback.format_exception_only(error)).strip(), flush=True)
                    if any("Traceback" in path.read_text() for path in session.glob("*/log.txt")):
                        wrong.add("traceback")
                    return f"{case.partition(',')[0]}, {terms.mechanism}", wrong

                tally.count(f"{number + 1}, {terms.mechanism}, {case}", once)
    finally:
        for process in busy:
            process.kill()


def _loop() -> None:
    while True:
        pass
