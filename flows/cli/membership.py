"""`terrine membership`: attack the student of a run with shadow runs of its pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from flows.cli.attack import conclude, with_bar
from flows.cli.options import JsonOption
from flows.printing import printer

if TYPE_CHECKING:
    from tasks.runtime.run import Run


def membership(
    run: Annotated[str | None, typer.Option(help="A complete run; default: the one selected last.")] = None,
    shadows: Annotated[int, typer.Option(help="Shadow runs, each on a random half of the records.")] = 16,
    confidence: Annotated[float, typer.Option(help="Confidence of the lower bound on ε.")] = 0.95,
    as_json: JsonOption = False,
) -> None:
    """Try to tell from students whose records their teachers saw: exit code 1 when more leaks than is charged.

    The outcome is private: it is written to data/private/RUN/membership.json.
    """
    from tasks.auditing.membership import audit_student
    from tasks.runtime.run import chosen_run

    subject = chosen_run(run)
    result = with_bar("shadow runs", lambda tell: audit_student(subject, make_shadow, shadows, confidence, tell))
    conclude(result, as_json, lambda found: _show(subject.name, found))


def make_shadow(shadow: Run) -> None:
    """Take a shadow run from its records to its student."""
    from flows.stages import run_through

    transcribed = shadow.params.transcription is not None
    run_through(shadow, "partition", "labels" if transcribed else "partition")
    run_through(shadow, *(("teach", "transcribe") if transcribed else ("average", "student")))


def _show(run: str, result: dict[str, Any]) -> None:
    console = printer()
    console.print(f"{run}: {result['shadows']} shadow runs, {result['units']:,} units ({result['unit']})\n")
    table = Table(box=None, pad_edge=False, show_header=False)
    auc = result["auc"]
    table.add_row(
        "area under the ROC curve", f"{auc['value']:.3f} ({auc['low']:.3f} to {auc['high']:.3f})", "0.5 is chance"
    )
    for who, found in (("members", result["members_found"]), ("non-members", result["others_found"])):
        for fpr, rate in found.items():
            shown = f"{rate['value']:.2%} ({rate['low']:.2%} to {rate['high']:.2%})"
            table.add_row(f"{who} found at {float(fpr):.1%} false alarms", shown, f"{float(fpr):.2%} is chance")
    table.add_row(f"ε at least, with confidence {result['confidence']:.0%}", f"{result['epsilon_at_least']:.3f}", "")
    charged = result["epsilon_charged"]
    table.add_row("ε charged", "none: NOT PRIVATE" if charged is None else f"{charged:.4f}", f"δ = {result['delta']:g}")
    console.print(table)
    if charged is None:
        console.print("\nThe release promises nothing that an attack could refute.")
    elif result["caught"]:
        console.print("\nThe student gives away more than is charged.", style="bold red")
    else:
        console.print("\nNothing beyond the charge was found; that proves nothing.")
    console.print(result["notice"])
