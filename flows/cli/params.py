"""`terrine params`: every setting, with its default, its unit and its meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.text import Text

from flows.printing import printer


def params(
    prefix: Annotated[str, typer.Argument(help="Only settings whose names begin so, for example teachers.")] = "",
    run: Annotated[str | None, typer.Option(help="Show what this run or preset sets, beside the defaults.")] = None,
) -> None:
    """List every setting: what it may be, its default, its unit and what it means."""
    from tasks.config.listing import settings
    from tasks.config.presets import project_root
    from tasks.config.values import as_yaml
    from terrine.errors import SettingError, did_you_mean

    everything = settings()
    chosen = [setting for setting in everything if setting.key.startswith(prefix)]
    if not chosen:
        known = dict.fromkeys(setting.key.partition(".")[0] for setting in everything)
        near = did_you_mean(prefix, [*known, *(setting.key for setting in everything)])
        raise SettingError(f"No setting begins with '{prefix}'.{near} They begin with {', '.join(known)}.")
    own = _of_run(project_root(), run) if run else {}
    console = printer()
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


def _of_run(root: Path, name: str) -> dict[str, Any]:
    """Return the settings of a run or preset by section.key: `auto` where nothing was chosen yet."""
    from tasks.config.automatic import AUTO, take_out
    from tasks.config.presets import resolve, values_of
    from tasks.config.values import flat
    from tasks.runtime.parameters import settled_before

    params, chosen = resolve(root, name), settled_before(root, name)
    if chosen is not None:
        return flat(chosen.model_dump(mode="json"))
    automatic = take_out(values_of(root, name))[1]
    return flat(params.model_dump(mode="json")) | {".".join(key): AUTO for key in automatic}
