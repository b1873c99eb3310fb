"""`terrine account`: the cost of votes, or the noise for a budget."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Column
from rich.text import Text

from flows.cli.options import JsonOption
from flows.printing import plain_table, printer
from terrine.errors import SettingError

_sanitised_option = partial(typer.Option, rich_help_panel="Sanitised ε")
_budget_option = partial(typer.Option, rich_help_panel="Noise for a budget, without votes")


def account(
    votes: Annotated[Path | None, typer.Argument(help=".npy file with votes [queries, teachers].")] = None,
    mechanism: Annotated[Literal["lnmax", "gnmax", "confident"], typer.Option(help="Mechanism.")] = "gnmax",
    histograms: Annotated[
        bool, typer.Option("--histograms", help="The file contains vote counts [queries, classes].")
    ] = False,
    teachers_first: Annotated[
        bool, typer.Option("--teachers-first", help="The file contains votes [teachers, queries].")
    ] = False,
    classes: Annotated[
        int | None, typer.Option(help="Number of classes. By default the largest vote plus one.")
    ] = None,
    teachers: Annotated[int | None, typer.Option(help="Number of teachers.")] = None,
    queries: Annotated[int | None, typer.Option(help="Number of queries to use, from the first. Default: all.")] = None,
    sigma: Annotated[float | None, typer.Option(help="Noise of gnmax, in votes.")] = None,
    scale: Annotated[float | None, typer.Option(help="Scale of the Laplace noise of lnmax, in votes.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Threshold of confident, in votes.")] = None,
    sigma1: Annotated[float | None, typer.Option(help="Noise of the threshold test of confident, in votes.")] = None,
    sigma2: Annotated[float | None, typer.Option(help="Noise of confident on answers, in votes.")] = None,
    delta: Annotated[float, typer.Option(help="δ; should be well below 1/records.")] = 1e-5,
    weighting: Annotated[
        Literal["expected", "realised"] | None,
        typer.Option(help="Weight of answers: expected, or realised (default with --answered)."),
    ] = None,
    answered: Annotated[
        Path | None, typer.Option(help=".npy file with answered queries: booleans, or labels with −1.")
    ] = None,
    conversion: Annotated[
        Literal["classical", "improved"],
        typer.Option(help="Conversion from RDP to ε. The published ε of the papers use classical."),
    ] = "improved",
    orders: Annotated[
        str, typer.Option(help="RDP orders: default, reference, or comma-separated numbers.")
    ] = "default",
    sanitise: Annotated[bool, typer.Option("--sanitise", help="Also compute the sanitised ε.")] = False,
    order: Annotated[float | None, typer.Option(help="RDP order. Default: the best.")] = None,
    beta: Annotated[float | None, typer.Option(help="Smoothness β. Default: the best.")] = None,
    sigma_ss: Annotated[
        float | None,
        typer.Option(
            "--sigma-ss",
            help="Noise on the sanitised ε, in units of its smooth sensitivity. Default: the best.",
        ),
    ] = None,
    epsilon: Annotated[float | None, _budget_option(help="ε that all answers together may cost.")] = None,
    answers: Annotated[int | None, _budget_option(help="Number of answers.")] = None,
    tests: Annotated[int, _budget_option(help="Number of threshold tests, with --sigma1.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Compute the ε of answering queries, or the noise for a budget.

    With a file of votes, the command also states which figures may be published. Without one, it finds the noise for
    --epsilon and --answers. Nothing is released or charged.
    """
    from tasks.pipeline.vote_costs import CostQuery
    from tasks.pipeline.vote_costs import account as account_votes
    from tasks.tools.vote_files import read_answered, read_histograms
    from terrine.privacy.accounting.calibrate import calibrate
    from terrine.privacy.accounting.gaussian import round_up

    if votes is None:
        if epsilon is None or answers is None:
            raise SettingError("Give a file of votes, or --epsilon and --answers.")
        found = calibrate(epsilon, delta, answers, tests=tests, sigma1=sigma1)
        tested = f" and {tests} tests at sigma1 = {sigma1:g}" if tests else ""
        sentence = f"sigma = {round_up(found.sigma):.4f} votes allow {answers} answers{tested} at ε = {epsilon:g}, "
        figures = {**asdict(found), "epsilon_exact": found.epsilon_exact}
        typer.echo(json.dumps(figures, indent=2) if as_json else f"{sentence}δ = {delta:g} (exact).")
        return
    if sigma is not None and sigma2 is not None:
        raise SettingError("--sigma and --sigma2 are both the noise of the answers: give one.")
    query = CostQuery(
        mechanism=mechanism,
        delta=delta,
        sigma=sigma if sigma2 is None else sigma2,
        scale=scale,
        threshold=threshold,
        sigma1=sigma1,
        weighting=weighting,
        conversion=conversion,
        orders=orders,
        sanitise=sanitise,
        order=order,
        beta=beta,
        sigma_ss=sigma_ss,
    )
    counts = read_histograms(
        votes, histograms=histograms, teachers_first=teachers_first, classes=classes, teachers=teachers, queries=queries
    )
    result = account_votes(counts, query, None if answered is None else read_answered(answered, len(counts)))
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        _show_account(result)


def _show_account(result: dict[str, Any]) -> None:
    from terrine.privacy.accounting.gaussian import round_up

    titles = {"exact": "exact", "data_independent": "data-independent RDP", "data_dependent": "data-dependent RDP"}
    table, notes = plain_table(Column("ε", no_wrap=True), "value", "RDP order", "may be published"), []
    for name, title in titles.items():
        figure = result[name]
        table.add_row(
            title,
            f"{round_up(figure['epsilon'], 5):.5f}",
            f"{figure['order']:.4g}" if "order" in figure else "",
            "yes" if figure["may_be_published"] else "NO",
        )
        notes.append(Text.assemble((title, "bold"), f": {figure['note']}"))
    if (figure := result["sanitised"]) is not None:
        table.add_row(
            "sanitised (mean ± deviation)",
            f"{round_up(figure['mean'], 5):.5f} ± {round_up(figure['standard_deviation'], 5):.5f}",
            f"{figure['order']:.4g}",
            "NO",
        )
        sigma_ss = "∞" if figure["sigma_ss"] is None else f"{figure['sigma_ss']:.4g}"
        notes.append(
            Text.assemble(
                ("sanitised", "bold"),
                f", beta {figure['beta']:.4g}, sigma_ss {sigma_ss}, smooth sensitivity "
                f"{figure['smooth_sensitivity']:.4g}: {figure['note']}",
            )
        )
    weighting = f" ({result['weighting']})" if result["mechanism"] == "confident" else ""
    console = printer()
    console.print(
        f"{result['mechanism']}: {result['queries']} queries, {result['answered']:.6g} answered{weighting}, "
        f"{result['teachers']} teachers, {result['classes']} classes, δ = {result['delta']:g}, "
        f"{result['conversion']} conversion\n"
    )
    console.print(table)
    console.print("", *notes, sep="\n")
