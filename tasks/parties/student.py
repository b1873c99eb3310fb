"""The host of the student party: the one that learns the answers, and writes them down before it says so.

It tells the guardian whose shares it has only when it has written down its own sums of them. So whenever the guardian
has drawn noise, both sides hold sums that belong together, and a session that breaks is finished with the same noise.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from tasks.parties.config import PartyConfig
from tasks.parties.host import CollaborationError, Host, log
from tasks.parties.state import PartyState
from terrine.collaboration.protocol.party import Agreement, ProtocolError, Send
from terrine.collaboration.protocol.student import StudentParty
from terrine.errors import ArtefactError, TerrineError
from terrine.files import atomic_file

_SUMS = "sums"
ANSWERS, ABOUT = "answers.npz", "answers.json"
"""The files of the answers, and what they are: the terms, the release, and what the guardian says it cost."""
_CONFIRMATION = 15.0  # seconds that the guardian is waited for when the answers are here already


class StudentHost(Host):
    """See `Host`. The outcome says where the answers are, and what the guardian charged for them."""

    def __init__(self, config: PartyConfig) -> None:
        super().__init__(config)
        assert config.answers is not None
        self._answers = config.answers
        self._about = stored_answers(config)
        self._state: PartyState | None = None
        self._held: list[Send] = []
        self._saved = False
        self._finished: dict[str, Any] | None = None
        self._closing: set[str] | None = None
        self._close_at = math.inf

    def begin(self) -> None:
        terms = self.config.terms
        if self._about is not None and self._about.get("guardian") is not None:
            self.outcome = self._about
            return
        assert self.config.listen is not None
        assert self.config.guardian is not None
        self.wire.listen(self.config.listen, dict.fromkeys(terms.teachers, "teacher"))
        self.wire.connect(terms.guardian, "guardian", self.config.guardian, convenes=True)

    @property
    def _student(self) -> StudentParty | None:
        return self.party if isinstance(self.party, StudentParty) else None

    def on_session(self, session: str, greeting: dict[str, Any]) -> None:
        release = str(greeting.get("release"))
        state = PartyState(self.config.state, release)
        stored = state.load(_SUMS)
        resumed = greeting.get("resumed")
        if isinstance(greeting.get("finished"), dict) and self._about is not None:
            # It waits to be told that this was heard.
            self._finished, self._state = greeting["finished"], state
            self.wire.begin(session)
            return
        if resumed is None and self._about is not None:
            raise CollaborationError(
                f"This party has answers to these terms in {self._answers}, and the guardian knows of none: its ledger "
                "or its state was lost. Restore them; a second draw of the noise would cost what no ledger says."
            )
        if resumed == session:
            # We were started again in the middle of it. When the guardian meets us it begins another, with fresh keys.
            self.party = None
            self.wire.begin(session)
            return
        if resumed is not None and (stored is None or stored[1]["origin"] != resumed):
            raise CollaborationError(
                f"The guardian finishes the round {resumed[:8]}, and this party has no sums of it: its state in "
                f"{self.config.state} is gone or is another one's. Restore it. The noise of that round was drawn and "
                "is not drawn again; to ask again, at new cost, agree on another edition."
            )
        if resumed is None:
            # The guardian has drawn nothing for this release, or it would have said so.
            state.forget(_SUMS)
            self.party = StudentParty(self._agreement(session, release))
        else:
            assert stored is not None
            self.party = StudentParty.resume(self._agreement(resumed, release), stored[0], session=session)
        self._state, self._held, self._closing, self._close_at = state, [], None, math.inf
        self._saved = resumed is not None
        self.wire.begin(session)
        log.info("%s: session %s%s", self.name, session[:8], "" if resumed is None else ", resumed")
        self.deliver(self.party.start())

    def _agreement(self, session: str, release: str) -> Agreement:
        return self.config.terms.agreement(session, release)

    def on_connected(self, peer: str, greeting: dict[str, Any], restarted: bool) -> None:
        if peer == self.config.terms.guardian and self._finished is not None:
            self._confirmed(self._finished)

    def on_note(self, sender: str, content: dict[str, Any]) -> None:
        if sender != self.config.terms.guardian:
            return
        if "aborted" in content:
            raise CollaborationError(f"The guardian ended the session: {content['aborted']}")
        if isinstance(content.get("closing"), list):
            self._closing = set(content["closing"])
            # Shares that the guardian has already are on their way to us as well.
            self._close_at = time.monotonic() + max(2.0, self.config.deadline / 4)
        if isinstance(content.get("finished"), dict):
            self._confirmed(content["finished"])

    def _confirmed(self, record: dict[str, Any]) -> None:
        """The guardian has charged what the answers cost."""
        if self._about is not None:
            self._about = {**self._about, "guardian": record}
            self._write_about(self._about)
            self.outcome = self._about

    def on_refused(self, error: ProtocolError) -> None:
        if error.sender not in self.config.terms.teachers:
            raise CollaborationError(str(error))
        log.warning("%s: %s", self.name, error)

    def on_failed(self, peer: str, error: TerrineError) -> None:
        if self._about is None:
            raise error
        self._leave(error)

    def on_error(self, error: TerrineError) -> None:
        if self.wire.session is not None:
            self.last_word([self.config.terms.guardian], aborted=str(error))

    def end(self) -> None:
        if self._about is not None and self._about.get("guardian") is not None and self.wire.session is not None:
            self.last_word([self.config.terms.guardian], heard=True)
            if self._state is not None:
                self._state.clear()

    def after_receive(self) -> None:
        party = self._student
        assert party is not None
        if party.present is not None and not self._saved:
            for teacher in party.refused:
                log.warning("%s: what %s shared are no votes of its teachers: it is left out", self.name, teacher)
            assert self._state is not None
            self._state.save(_SUMS, party.state(), origin=party.agreement.session)
            self._saved = True

    def after_answers(self) -> None:
        party = self._student
        if party is not None and party.aborted is not None:
            raise CollaborationError(party.aborted)

    def deliver(self, sends: Iterable[Send]) -> bool:
        return super().deliver(self._in_order(sends))

    def _in_order(self, sends: Iterable[Send]) -> Iterable[Send]:
        """Hold back whose shares we have until our sums are written down, and the last word until the answers are."""
        party = self._student
        assert party is not None
        for send in sends:
            if not self._saved and party.aborted is None:
                self._held.append(send)
                continue
            yield from self._released()
            if party.result is not None:
                self._keep_answers(party)
            yield send
        if self._saved or party.aborted is not None:
            yield from self._released()

    def _released(self) -> Iterable[Send]:
        held, self._held = self._held, []
        return held

    def look_at_the_clock(self) -> None:
        party = self._student
        if party is not None and not party.closed and self._closing is not None:
            here = self._closing & set(self.config.terms.teachers) <= set(party.complete)
            if here or time.monotonic() > self._close_at:
                answers = party.close()
                self.after_receive()
                self.deliver(answers)
                self.after_answers()
        if self._about is not None and time.monotonic() - self._heard > min(_CONFIRMATION, self.config.patience):
            self._leave(CollaborationError("The guardian has not confirmed."))
            return
        super().look_at_the_clock()

    def _leave(self, why: TerrineError) -> None:
        """The answers are here, and the guardian is not: they are as good, and its record will be asked for again."""
        log.warning(
            "%s: the answers are here; what they cost will be known when both are run again. %s", self.name, why
        )
        self.outcome = self._about

    def _keep_answers(self, party: StudentParty) -> None:
        assert party.result is not None
        assert party.passed is not None
        arrays = {"passed": party.passed, "result": party.result}
        terms = self.config.terms
        about = {"terms": terms.public(), "unit": terms.unit, "release_id": party.agreement.release, "guardian": None}
        if self._about is not None:
            kept = read_arrays(self.config)
            if any(not np.array_equal(kept[name], array) for name, array in arrays.items()):
                raise CollaborationError(
                    f"The answers in {self._answers} are not those that the sums give: one of them was changed."
                )
            return
        self._answers.mkdir(parents=True, exist_ok=True)
        with atomic_file(self._answers / ANSWERS, owner_only=True) as file:
            np.savez(file, allow_pickle=False, **arrays)
        self._write_about(about)
        self._about = about

    def _write_about(self, about: dict[str, Any]) -> None:
        text = json.dumps(about, indent=2, sort_keys=True) + "\n"
        with atomic_file(self._answers / ABOUT, owner_only=True) as file:
            file.write(text.encode())


def stored_answers(config: PartyConfig) -> dict[str, Any] | None:
    """What is known about the answers that are there, or None. Raises ArtefactError for those to other terms."""
    assert config.answers is not None
    path = config.answers / ABOUT
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ArtefactError(f"{path} cannot be read: {error}. Restore it from a backup.") from error
    if not isinstance(about, dict) or about.get("terms") != config.terms.public():
        raise ArtefactError(f"{config.answers} holds answers to other terms. Give `answers` another folder.")
    return about


def read_arrays(config: PartyConfig) -> dict[str, np.ndarray]:
    """The answers: `passed`, bool [asked], and `result`, as the student party has them (`StudentParty.result`).

    Raises ArtefactError where they are missing or damaged.
    """
    assert config.answers is not None
    path = config.answers / ANSWERS
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in ("passed", "result")}
    except Exception as error:  # zipfile and numpy raise errors of many kinds on damaged files
        raise ArtefactError(f"{path} is missing or damaged: {error}. Restore it from a backup.") from error
