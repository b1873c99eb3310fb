"""`terrine statement` and `terrine verify`: document, import, sign, promote and verify a release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Column
from rich.text import Text

from flows.cli.options import RunArgument, RunOption, SetOption, chosen_name
from flows.printing import plain_table, printer
from terrine.errors import ArtefactError, SettingError

if TYPE_CHECKING:
    from rich.console import Console

    from tasks.runtime.run import Run

_SHOWN = {True: ("ok", "green"), False: ("wrong", "red"), None: ("–", "yellow")}


def statement(
    name: RunArgument = None,
    run: RunOption = None,
    language: Annotated[
        list[str] | None, typer.Option("--language", help="en, de, fr or es. May be repeated. Default: all.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a single page in one language to this file.")] = None,
    pdf: Annotated[Path | None, typer.Option(help="Write a single page in one language to this file, as PDF.")] = None,
    sign: Annotated[
        bool,
        typer.Option(
            "--sign", help="Sign statement, pages and student with the site's key. The key is created if it is missing."
        ),
    ] = False,
    export_key: Annotated[
        Path | None, typer.Option("--export-key", help="Write the site's public key to this file.")
    ] = None,
    promote: Annotated[
        bool,
        typer.Option(
            "--promote",
            help="Make the student `champion` in MLflow's registry. Requires a private, signed and verified release.",
        ),
    ] = False,
) -> None:
    """Write the pages about a release for an ethics board, sign them, or promote the student.

    For a model that another library trained, see `terrine statement import --help`.

    Recipients verify the release with `terrine verify`.
    """
    from tasks.reports.language import LANGUAGES
    from tasks.runtime.accounts import site_signing_file, site_signing_key
    from tasks.runtime.approval import refuse_uncovered
    from tasks.runtime.releases import contradicted_about, missing_about
    from tasks.runtime.run import chosen_run, unstarted_run
    from tasks.serving.pages import write_pages, write_single_page
    from terrine.files import write_text
    from terrine.privacy.statement import read_statement

    console, chosen = printer(soft_wrap=True), chosen_name(name, run)
    others = sign or html or pdf or language or promote
    made = chosen_run(chosen) if chosen or others or export_key is None else unstarted_run()
    if export_key is not None:
        from terrine.deployment.signature import fingerprint, public_pem

        public = site_signing_key(made).public_key()
        write_text(export_key, public_pem(public).decode())
        console.print(
            f"Written: {export_key}, key {fingerprint(public)}. Send it through another channel than the releases."
        )
    if (export_key is not None or promote) and not (sign or html or pdf or language):
        if promote:
            _promote(made, console)
        return
    if not made.folders.statement.is_file():
        raise ArtefactError(f"Run {made.name} has no statement. Make it first: terrine run {made.name}")
    if html is not None or pdf is not None:
        if sign or len(language or []) > 1:
            raise SettingError("--html and --pdf write one page in one --language and cannot be combined with --sign.")
        write_single_page(made.folders.release, (language or ["en"])[0], html, pdf)
        console.print(f"Written: {', '.join(str(file) for file in (html, pdf) if file is not None)}")
        return
    if sign and (missing := missing_about(made.params)):
        raise SettingError(
            f"The statement about private data lacks {', '.join(missing)}. Add them without cost: "
            f"terrine run {made.name} --set about.purpose='...'"
        )
    if sign and made.folders.dataset.is_dir() and not made.params.privacy.anyway:
        read = made.folders.dataset_manifest()
        if contradiction := contradicted_about(made.params, read["records"]["train"], read["groups"]):
            raise SettingError(f"{contradiction} Nothing was signed.")
    if sign:
        said = read_statement(made.folders.statement)
        refuse_uncovered(made, said["release_id"], said)
    key = site_signing_key(made) if sign else None
    written = write_pages(made.folders.release, list(dict.fromkeys(language or LANGUAGES)), key)
    if sign:
        from tasks.serving.attestations import sign_for_tools

        written.files.extend(sign_for_tools(made.folders.release, site_signing_file(made)))
    if written.no_pdf is not None:
        console.print(written.no_pdf, style="yellow")
    console.print(f"Written to {made.folders.release}: {', '.join(written.files)}")
    if written.key is not None:
        console.print(
            f"Signed with the site's key {written.key}. Export its public key: terrine statement --export-key FILE"
        )
    if promote:
        _promote(made, console)


def import_statement(
    release: Annotated[str, typer.Option(prompt="Name of the release", help="Name of the release.")],
    account: Annotated[
        str, typer.Option(prompt="Account of the ledger for these data", help="Account of the ledger (ledger.account).")
    ],
    budget: Annotated[
        float, typer.Option(prompt="ε of this account over all releases", help="ε of the account (ledger.epsilon).")
    ],
    unit: Annotated[
        Literal["record", "group"],
        typer.Option(
            prompt="Protected unit",
            help="Protected unit: record; or group, if contributions of a person or site were clipped.",
        ),
    ],
    record: Annotated[
        Literal["image", "dicom", "volume", "row"], typer.Option(prompt="Kind of a record", help="Kind of a record.")
    ],
    sampling: Annotated[
        Literal["poisson", "fixed", "shuffled", "all"],
        typer.Option(
            prompt="How batches were drawn",
            help="Batches: poisson (each unit at random, independently), fixed (random subset of fixed size), shuffled "
            "(the usual data loader) or all.",
        ),
    ],
    delta: Annotated[float, typer.Option(prompt="δ, well below 1/records", help="δ; should be well below 1/records.")],
    model: Annotated[list[Path], typer.Option(help="File of the model. May be repeated.")],
    state: Annotated[
        Path | None,
        typer.Argument(
            help="Checkpoint of Opacus; or JSON: a DpEvent of dp-accounting or jax_privacy, Flower's accountant, or "
            "parameters of Flower's central DP."
        ),
    ] = None,
    edition: Annotated[str, typer.Option(help="Edition of the data (data.edition).")] = "1",
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Without STATE: noise, in units of the clipping norm.")
    ] = None,
    sample_rate: Annotated[float | None, typer.Option(help="Without STATE: batch size / number of units.")] = None,
    steps: Annotated[int | None, typer.Option(help="Without STATE: number of steps.")] = None,
    set_: SetOption = None,
) -> None:
    """Write and sign the statement of a model that another library trained, and charge its account.

    Asks for facts that are not given and that the state does not contain. Terrine recomputes ε under both neighbouring
    relations.
    """
    from tasks.config.presets import project_root
    from tasks.desk.imports import Stated, import_training, read_state
    from terrine.privacy.accounting.gaussian import round_up
    from terrine.privacy.training import Training

    numbers = (noise_multiplier, sample_rate, steps)
    if (state is None) == (numbers == (None, None, None)) or (state is None and None in numbers):
        raise SettingError("Give a file STATE, or --noise-multiplier, --sample-rate and --steps.")
    console = printer(soft_wrap=True)
    if sampling == "shuffled":
        console.print(
            "Shuffled batches are no Poisson sample: the ε that most libraries print does not hold for them. Terrine "
            "counts one full step per epoch.",
            style="yellow",
        )
    training = (
        Training("stated", sampling, ((noise_multiplier, sample_rate, steps),))  # type: ignore[arg-type]
        if state is None
        else read_state(state, sampling)
    )
    facts = Stated(release, account, budget, unit, record, delta, edition, tuple(model))
    done = import_training(project_root(), training, facts, list(set_ or []))
    found = done.statement
    added = (
        "" if found.epsilon_added is None else f" ({round_up(found.epsilon_added):g} if one is only added or removed)"
    )
    console.print(
        f"ε = {round_up(found.epsilon):g}{added} at δ = {found.delta:g} per {found.unit}. The account has used "
        f"ε = {round_up(found.epsilon_dataset):g}."
    )
    console.print(f"Written to {done.folder}, signed with the site's key {done.key}.")


def _promote(run: Run, console: Console) -> None:
    from tasks.runtime.locks import making
    from tasks.tools.promotion import CHAMPION, promote

    with making(run.root, run.name):
        done = promote(run)
    before = "" if done.before in (None, done.version) else f" (before: version {done.before})"
    console.print(f"Accuracy as served (private test split): {100 * done.accuracy:.2f} %")
    if done.warning is not None:
        console.print(f"Warning: {done.warning}", style="yellow")
    console.print(f"Version {done.version} of {run.name} is the {CHAMPION}{before}. To load it in Python:")
    console.print(f'  import mlflow\n  mlflow.set_tracking_uri("{run.database(run.params.tracking.uri)}")')
    console.print(f'  model = mlflow.pyfunc.load_model("models:/{run.name}@{CHAMPION}")')


def verify(
    statement: Annotated[
        Path, typer.Argument(help="Folder of a release, its privacy.json, one of its pages, or student.zip.")
    ],
    key: Annotated[
        str | None,
        typer.Option(
            "--key", help="Fingerprint of the site's key or file with it or its certificate, from another channel."
        ),
    ] = None,
) -> None:
    """Verify a received release: ε from its events, all pages, the student and the signature.

    In an airlock kit, it also compares all files with kit.json. Needs neither a project nor private files. To verify a
    ledger, use `terrine ledger --verify`.
    """
    from tasks.desk.kit.verify import verify as verify_kit
    from tasks.serving.verification import Check, verify_statement
    from terrine.deployment.signature import expected_key

    trusted, console = None if key is None else expected_key(key), printer()
    checks, folder = verify_statement(statement, trusted), statement if statement.is_dir() else statement.parent
    if any((folder / name).is_file() for name in ("kit.json", "kit.sig")):
        for holds, what, told in verify_kit(str(folder), trusted and trusted.replace(" ", "")):
            if holds is not None:  # the checks above state what the kit's own ones leave open
                detail = "".join(letter if letter.isprintable() else "?" for letter in told)
                checks.append(Check(f"kit: {what}", holds, detail))
    table = plain_table(Column(no_wrap=True), Column(no_wrap=True), Column(overflow="fold"), show_header=False)
    for check in checks:
        word, style = _SHOWN[check.holds]
        table.add_row(Text(word, style=style), check.what, check.detail)
    console.print(table)
    wrong = sum(check.holds is False for check in checks)
    if wrong:
        failed = f"{wrong} of {len(checks)} checks failed."
        console.print(f"{failed} Do not rely on this release; request it again from the site.", style="red")
        raise typer.Exit(1)
    console.print(
        "All checks passed." + ("" if key else " The sender was not verified: this requires the site's key (--key).")
    )
