"""Terms as a page to read and sign: parties, queries, protected unit, guarantee, and the knowledge of each role."""

from __future__ import annotations

import textwrap
from typing import Any

from tasks.collaboration.proposal import grouped
from tasks.parties.terms import Terms
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
    """Return the terms as plain text, with the digest in groups."""
    trust = TRUST_MODELS["parties"]
    sections = {
        f"Proposal {terms.name}".strip(): [
            f"Digest {grouped(terms.digest)}. Compare it by telephone with the party that sent this."
        ],
        "Who takes part": _parties(terms),
        "What is asked": _queries(terms),
        "Neighbouring data": [f"In them {neighbouring(terms.unit, terms.overlap)}."],
        "What is guaranteed": _guarantee(terms),
        "Who learns what": _knowledge(terms),
        "Who is trusted": [trust[0].upper() + trust[1:] + "."],
        "When": [
            f"A round closes when all reports are in, or after {span(terms.deadline)}. With fewer than "
            f"{terms.minimum:,} of {terms.held(terms.total)} it stays open, and costs nothing.",
            f"Edition {terms.edition or '(none)'}, with Terrine {terms.version}.",
        ],
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


def _knowledge(terms: Terms) -> list[str]:
    """Return the tasks and the knowledge of each role."""
    halves = "as two shares, each of them random; it learns which parties were counted"
    if terms.votes:
        updates, average = ("updates of its teachers, then ", ", and the averages") if terms.averages else ("", "")
        teacher = f"teacher: keeps its records and teachers. It uploads {updates}its votes {halves}{average}."
        tested = "; it learns which queries passed a threshold test, if there is one"
        answers = "the answers, which contain noise"
    else:
        heads = ", and the weights of each round" if terms.last else ""
        teacher = f"teacher: keeps its records. It uploads sums over them {halves}{heads}."
        tested, answers = "", "the sums, which contain noise"
    return [
        teacher,
        f"guardian: adds the noise and keeps the ledger. It has one share{tested}.",
        f"student: has the other share. Only it learns {answers}.",
    ]


def _queries(terms: Terms) -> list[str]:
    """Return the lines about queries, images, teachers and mechanism."""
    described = {key: value for key, value in terms.described.describe().items() if terms.public().get(key) is not None}
    images = "rows" if terms.size is None else f"{in_words(terms.size)}, {'grey' if terms.channels == 1 else 'colour'}"
    queried = (
        f"{terms.queried:,} of {terms.queries:,} public images ({images}), none of them a party's records."
        if terms.votes
        else f"{terms.numbers:,} sums over records ({images})."
    )
    lines = [f"{queried} Classes, by label: {', '.join(terms.class_names)}."]
    made = {"pad": "padded with black if they have another shape", "crop": "cropped to their middle"}
    read = [made[terms.fit]] if terms.fit in made else []
    if terms.window is not None:
        read.append("black at {:g} and white at {:g} if they have more than 8 bits".format(*terms.window))
    if read:
        lines.append(f"Images of records are {', and '.join(read)}.")
    if (table := terms.table) is not None:
        columns = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in table.columns.items())
        lines.append(f"Every party's table has the column {table.target}, which is predicted, and {columns}.")
    if terms.teaching is not None:
        kind = terms.teaching.settings.kind
        lines.append(f"Teachers are of kind {kind}, trained alike at all parties with seed {terms.teaching.seed}.")
    if (averages := terms.averages) is not None:
        settings = averages.averaging.settings
        lines.append(
            f"In {settings.rounds} rounds teachers average before they vote. After each but the "
            f"last, all parties get the mean of their updates, {averages.weights:,} numbers each, clipped to length "
            f"{plain(settings.clip)}, with noise of {averages.averaging.noise_multiplier:.4g} times that "
            f"length on the sum{', and first the mean of their features' if averages.features else ''}."
        )
    parameters = mechanism_texts(_statement(terms, described))["mechanism_parameters"]
    lines.append(MECHANISMS.of(terms.mechanism).text)
    return [*lines, *(f"{name} = {plain(value)}: {text}." for name, value, text in parameters)]


def _statement(terms: Terms, described: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a statement at the highest possible cost."""
    event = terms.event()
    return {
        "private": True,
        "unit": terms.unit,
        "mechanism": described,
        "delta": terms.delta,
        "delta_slack": delta_slack(terms.numbers, terms.epsilon),
        "epsilon_budget": terms.epsilon,
        "epsilon": price(event, terms.delta),
        "event": to_json(event),
    }


def _guarantee(terms: Terms) -> list[str]:
    cost = round_up(price(terms.event(), terms.delta))
    guesses = correct_guesses(_statement(terms, {"mechanism": terms.mechanism}))
    return [
        f"ε ≤ {terms.epsilon:g} at δ = {terms.delta:g}; all queries together cost at most ε = {cost:g}. With or "
        f"without the protected data, the probability of every outcome differs at most by a factor of "
        f"e^{terms.epsilon:g}, up to a probability of {terms.delta:g}, even for an attacker who knows all other data.",
        "In other words: an attacker who knows everything else, and guesses from the release whether a person's data "
        f"are in it, is right at most {guesses:g} times in a hundred; by tossing a coin, 50 times.",
        "The guardian's ledger charges this once. The same terms are answered once, at no further charge; another "
        "edition costs again.",
    ]
