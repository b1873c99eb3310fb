"""`terrine params`: every setting, with its default, its unit and its meaning."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("params")(params)


def params(
    prefix: Annotated[str, typer.Argument(help="Only settings whose names begin so, for example teachers.")] = "",
    run: Annotated[str | None, typer.Option(help="Show what this run or preset sets, beside the defaults.")] = None,
) -> None:
    """List every setting: what it may be, its default, its unit and what it means."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from tasks.config.listing import settings
    from tasks.config.presets import project_root, resolve
    from tasks.config.values import as_yaml, flat
    from terrine.errors import SettingError, did_you_mean

    everything = settings()
    chosen = [setting for setting in everything if setting.key.startswith(prefix)]
    if not chosen:
        known = dict.fromkeys(setting.key.partition(".")[0] for setting in everything)
        near = did_you_mean(prefix, [*known, *(setting.key for setting in everything)])
        raise SettingError(f"No setting begins with '{prefix}'.{near} They begin with {', '.join(known)}.")
    own = flat(resolve(project_root(), run).model_dump(mode="json")) if run else {}
    console = Console(highlight=False)
    for setting in chosen:
        value = as_yaml(setting.default)
        line = Text.assemble((setting.key, "bold"), " = ", ("to be given" if setting.required else value, "cyan"))
        line.append(f"   {setting.values}" + (f", {setting.unit}" if setting.unit else ""), "dim")
        if setting.kinds:
            line.append(f"   of {', '.join(setting.kinds)}", "green")
        if setting.key in own and own[setting.key] != setting.default:
            line.append(f"   {run}: {own[setting.key]}", "magenta")
        console.print(line)
        console.print(Padding(setting.meaning, (0, 0, 0, 4)))
