"""SIGKILL of a party at each moment that the tests know, with two busy loops beside it."""

import traceback
from collections import Counter
from multiprocessing import get_context
from pathlib import Path


def kill_parties(folder: Path, times: int) -> tuple[Counter[str], Counter[str]]:
    """Kill so many times at each moment; return how often of whom, and what was wrong after."""
    from tests.party_processes import terms_of, terms_of_gradients, terms_of_sums
    from tests.tasks.parties import test_party_failures as known

    moments = [(case, terms_of()) for case in known.KILLED]
    moments += [(case, terms_of_sums()) for case in known.WITHOUT_CIRCUIT]
    moments += [(case, terms_of_gradients()) for case in known.KILLED_BETWEEN]
    where, wrong = Counter[str](), Counter[str]()
    busy = [get_context("fork").Process(target=_loop, daemon=True) for _ in range(2)]
    for process in busy:
        process.start()
    try:
        for number in range(times):
            for place, (case, terms) in enumerate(moments):
                session = folder / f"session-{number}-{place}"
                session.mkdir()
                where[f"{case.partition(',')[0]}, {terms.mechanism}"] += 1
                try:
                    known.test_a_party_killed_at_any_moment_comes_back_and_the_batch_is_answered_once(
                        case, terms, session
                    )
                    told = "well"
                except (Exception, AssertionError) as error:
                    wrong["not completed"] += 1
                    told = "".join(traceback.format_exception_only(error)).strip()
                if any("Traceback" in path.read_text() for path in session.glob("*/log.txt")):
                    wrong["traceback"] += 1
                    told += ", with a traceback"
                print(f"{number + 1:3}, {terms.mechanism}, {case}: {told}", flush=True)
    finally:
        for process in busy:
            process.kill()
    return where, wrong


def _loop() -> None:
    while True:
        pass
