"""Terms as a page that a person can read and sign: who, what is asked, whom ε protects, and who learns what."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from tasks.collaboration.proposal import grouped
from tasks.parties.terms import Role, Terms
from tasks.reports.pages import plain
from tasks.reports.statement_page import correct_guesses, mechanism_texts
from terrine.aggregation.mechanism import MECHANISMS
from terrine.geometry import in_words
from terrine.privacy.accounting.events import to_json
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noise import delta_slack
from terrine.privacy.statement import TRUST_MODELS, neighbouring
from terrine.spans import span

_WIDTH = 100


def page(terms: Terms) -> str:
    """Return the terms as plain text, with the digest as people compare it."""
    sections = {
        f"Proposal {terms.name}".strip(): [
            f"Digest {grouped(terms.digest)}. Compare it by telephone with the party that sent this."
        ],
        "Who takes part": _parties(terms),
        "What is asked": _asked(terms),
        "Neighbouring data": [f"In them {neighbouring(terms.unit, terms.overlap)}."],
        "What is guaranteed": _guaranteed(terms),
        "Who learns what": [f"{role}: {text}." for role, text in _learns(terms).items()],
        "Who is trusted": [_first_upper(TRUST_MODELS["parties"]) + "."],
        "When": _when(terms),
    }
    return "\n\n".join(
        "\n".join(
            [title, *(textwrap.fill(line, _WIDTH, initial_indent="  ", subsequent_indent="    ") for line in lines)]
        )
        for title, lines in sections.items()
    )


def _parties(terms: Terms) -> list[str]:
    each = "" if terms.votes else f" of {terms.records:,} {terms.unit}s at most each"
    return [
        *(f"{name}: a teacher party with {terms.held(count)}{each}" for name, count in terms.teachers.items()),
        f"{terms.guardian}: the guardian, at {terms.services['guardian'].url}",
        f"{terms.student}: the student party, at {terms.services['student'].url}",
    ]


def _learns(terms: Terms) -> dict[Role, str]:
    """Say what each role does, and comes to know."""
    halves = "as two halves that each look like noise; it learns who was counted"
    if not terms.votes:
        heads = ", and the head of each round" if terms.last else ""
        return {
            "teacher": f"keeps its records, and shares sums over them {halves}{heads}",
            "guardian": "adds the noise and keeps the ledger; of the sums it holds one half",
            "student": "holds the other half; it alone learns the sums, which have noise in them",
        }
    updates, average = ("updates of its teachers, and then ", ", and the averages") if terms.averages else ("", "")
    return {
        "teacher": f"keeps its records and teachers, and shares {updates}its votes {halves}{average}",
        "guardian": "adds the noise and keeps the ledger; of votes it holds one half, and learns which queries passed "
        "a threshold test, where there is one",
        "student": "holds the other half; it alone learns the answers, which have noise in them",
    }


def _asked(terms: Terms) -> list[str]:
    kind = MECHANISMS.of(terms.mechanism)
    described = {key: value for key, value in terms.described.describe().items() if terms.public().get(key) is not None}
    parameters = mechanism_texts(_statement(terms, described))["mechanism_parameters"]
    images = "rows" if terms.size is None else f"{in_words(terms.size)}, {'grey' if terms.channels == 1 else 'colour'}"
    made = {"pad": "padded with black where they have another shape", "crop": "cropped to their middle"}
    read = [made[terms.fit]] if terms.fit in made else []
    if terms.window is not None:
        read.append("black at {:g} and white at {:g} where they have more than 8 bits".format(*terms.window))
    told = [f"Pictures of records are {', and '.join(read)}."] if read else []
    asked = (
        f"{terms.asked:,} of {terms.queries:,} public images ({images}), none of them anybody's records. Classes, by "
        f"label: {', '.join(terms.class_names)}."
        if terms.votes
        else f"{terms.numbers:,} sums over records ({images}). Classes, by label: {', '.join(terms.class_names)}."
    )
    told = [asked, *told, *_teaching(terms), kind.text]
    return [*told, *(f"{name} = {plain(value)}: {text}." for name, value, text in parameters)]


def _teaching(terms: Terms) -> list[str]:
    """Say how teachers are trained, and what of it is released."""
    if terms.teaching is None:
        return []
    settings = terms.teaching.settings
    said = [f"Teachers are of kind {settings.kind}, trained alike at all parties with seed {terms.teaching.seed}."]
    if (averages := terms.averages) is not None:
        clip, rounds = plain(averages.averaging.settings.clip), averages.averaging.settings.rounds
        said.append(
            f"In {rounds} rounds they learn from one another before they vote. After each but the last the mean of "
            f"their updates, {averages.weights:,} numbers each, limited in length to {clip}, is told to all parties, "
            f"with noise of {averages.averaging.noise_multiplier:.4g} times that length on the sum"
            + (", and first of all the mean of their features." if averages.features else ".")
        )
    return said


def _statement(terms: Terms, described: Mapping[str, Any]) -> dict[str, Any]:
    """Return of a statement what texts about it are made from, as if all that may be spent were."""
    event = terms.event()
    return {
        "private": True,
        "unit": terms.unit,
        "mechanism": dict(described),
        "delta": terms.delta,
        "delta_slack": delta_slack(terms.numbers, terms.epsilon),
        "epsilon_budget": terms.epsilon,
        "epsilon": price(event, terms.delta),
        "event": to_json(event),
    }


def _guaranteed(terms: Terms) -> list[str]:
    cost = round_up(price(terms.event(), terms.delta))
    guesses = correct_guesses(_statement(terms, {"mechanism": terms.mechanism}))
    return [
        f"ε ≤ {terms.epsilon:g} at δ = {terms.delta:g}; all that is asked costs ε = {cost:g} at most. With whom ε "
        f"protects, no outcome becomes more than e^{terms.epsilon:g} times as likely, up to a probability of "
        f"{terms.delta:g}, for whatever the data are and whatever else is known.",
        "In other words: who knows everything else, and guesses from the release whether somebody's data are in it, "
        f"is right {guesses:g} times in a hundred at most; by tossing a coin, 50.",
        "The guardian's ledger charges this once. Asked again with the same terms nothing is drawn and nothing "
        "charged; another edition costs again.",
    ]


def _when(terms: Terms) -> list[str]:
    return [
        f"A round closes when all reports are in, or after {span(terms.deadline)}. With fewer than {terms.minimum:,} "
        f"of {terms.held(terms.total)} it stays open, and costs nothing.",
        f"Edition {terms.edition or '(none)'}, with Terrine {terms.version}.",
    ]


def _first_upper(text: str) -> str:
    return text[0].upper() + text[1:]
