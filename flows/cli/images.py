"""`terrine images`: draw a contact sheet or a large set of synthetic images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from flows.cli.options import DeviceOption
from flows.printing import printer
from terrine.errors import SettingError

console = printer()


def images(
    kind: Annotated[str, typer.Option(help="Image program. An unknown name lists all.")],
    out: Annotated[Path, typer.Option(help=".png file for a contact sheet, or folder for an image set.")],
    count: Annotated[int, typer.Option(help="Number of images.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed. Equal seeds give equal images.")] = 0,
    size: Annotated[int, typer.Option(help="Side of the images, 8 to 320 pixels.")] = 28,
    channels: Annotated[int, typer.Option(help="Colour channels: 1 or 3.")] = 3,
    shard: Annotated[int, typer.Option(help="Images per file of a set; 0: files of 64 MB.")] = 0,
    device: DeviceOption = "auto",
) -> None:
    """Draw synthetic images: a contact sheet (--out sheet.png) or an image set (--out FOLDER).

    An interrupted set is continued by the same command.
    """
    from tasks.tools.images import write_set, write_sheet
    from terrine.synthetic.shards import Written, stretches

    if out.suffix == ".png":
        if count > 10_000:
            raise SettingError(f"--count {count} is too many for one sheet; use at most 10000, or a folder as --out.")
        sheet = write_sheet(out, kind, count=count, seed=seed, size=size, channels=channels, device=device)
        console.print(f"{out}: {count} images of '{kind}', {sheet.shape[1]} × {sheet.shape[0]} pixels")
        return
    if out.suffix:
        raise SettingError(f"--out {out}: use a .png file for a contact sheet or a folder for an image set.")
    parts = stretches(kind, count=count, seed=seed, size=size, channels=channels, shard=shard)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(kind, total=count)

        def advance(written: Written) -> None:
            if written.state == "redrawn":
                bar.console.print(f"{written.path.name} did not match its digest and was drawn again.")
            bar.update(task, advance=written.images)

        cost = write_set(out, parts, device=device, progress=advance)
    kept = f", {cost.kept} files existed already" if cost.kept else ""
    console.print(
        f"{out}: {cost.images:,} images of '{kind}', {cost.bytes / 1e6:,.0f} MB, {cost.seconds:,.1f} s, "
        f"{cost.images_per_second:,.0f} images/s{kept}"
    )
