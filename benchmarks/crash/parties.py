"""SIGKILL of the two services of a collaboration at random moments, with two busy loops beside them."""

import random
import subprocess
import sys
import threading
import time
import traceback
from multiprocessing import get_context
from pathlib import Path

from benchmarks.crash.tally import Tally
from tasks.parties.terms import Terms


def kill_parties(folder: Path, times: int, tally: Tally) -> None:
    """Kill either service of trials of one and of several rounds; the release must be charged once all the same."""
    from tests.party_trials import check_answered_once, terms_of, terms_of_averages, terms_of_gradients, trial

    trials = {"votes": terms_of(), "sums": terms_of_gradients(), "averages": terms_of_averages()}
    busy = [get_context("fork").Process(target=_loop, daemon=True) for _ in range(2)]
    for process in busy:
        process.start()
    try:
        for number in range(4 * times):
            for name, made in trials.items():

                def once(number: int = number, name: str = name, made: Terms = made) -> tuple[str, set[str]]:
                    place = folder / f"{name}-{number}"
                    terms, votes = trial(place, made)
                    try:
                        _run(place, terms, votes, random.Random(number))
                        check_answered_once(place, terms, votes)
                    except (Exception, AssertionError) as error:
                        print(place, "".join(traceback.format_exception_only(error)).strip(), flush=True)
                        return f"a service, {name}", {"not completed"}
                    return f"a service, {name}", set()

                tally.count(f"{number + 1}, {name}", once)
    finally:
        for process in busy:
            process.kill()


def _loop() -> None:
    while True:
        pass


class _Service:
    """A service that is started again whenever it is killed."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tasks.parties.serve", *self._arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _run(folder: Path, terms: Terms, votes: object, chance: random.Random) -> None:
    from tasks.parties.client import ServiceClient, UnreachableError
    from tasks.parties.config import CONFIG, read_party
    from tasks.parties.submit import submit
    from terrine.ports import HOST, free_ports
    from tests.party_trials import given

    first, second = (f"{HOST}:{port}" for port in free_ports(2))
    guardian = _Service(str(folder / "guardian" / CONFIG), first)
    student = _Service(str(folder / "student" / CONFIG), second, f"https://{first}")
    urls, over = {"guardian": f"https://{first}", "student": f"https://{second}"}, threading.Event()

    def strike() -> None:
        while not over.wait(chance.uniform(0.5, 4.0)):
            victim = chance.choice((guardian, student))
            victim.kill()
            victim.start()

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        configs = [read_party(path).model_copy(update={"urls": urls}) for path in folder.glob(f"party-*/{CONFIG}")]
        end = time.monotonic() + 300
        while time.monotonic() < end:
            try:
                for config in configs:
                    submit(config, given(terms, votes))
                if ServiceClient(configs[0], "student").json("GET", "status")["state"] == "complete":
                    return
            except UnreachableError:
                continue
            time.sleep(0.2)
        raise AssertionError("The release is not complete after 300 s.")
    finally:
        over.set()
        thread.join()
        guardian.kill()
        student.kill()
