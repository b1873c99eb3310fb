"""What a party's SuperNode does: it runs a step of `terrine party`, and says whether that ended well.

Terrine has an environment of its own (Prefect and Flower require different versions of FastAPI), so a step is a
command. It reads what its own site wrote: party.yaml, terms that were accepted and signed, a budget. The SuperLink can
change none of these. Reports go from a party to the two services over Terrine's own connections. They are not put into
Flower messages: a SuperLink that carried both shares of a vote could add them up.

What a command says stays in `flower.log` beside party.yaml: it may count records.
"""

import subprocess
import tempfile
from pathlib import Path

import yaml
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

ARCHIVE = "student.zip"


@app.query("who")
def who(message: Message, context: Context) -> Message:
    """Say which party this is, and its role in the terms."""
    config = _config(context)
    return _reply(message, name=config.parent.name, role=_read(config)["role"])


@app.train("submit")
def submit(message: Message, context: Context) -> Message:
    """Teacher party: train if necessary, and upload this party's reports to both services."""
    return _reply(message, done=_run(context, _config(context), "submit", "--watch"))


@app.train("finish")
def finish(message: Message, context: Context) -> Message:
    """Student party: make the student and hand it on. Teacher party: see how well it does here, which stays here."""
    config = _config(context)
    if "archive" not in message.content.config_records:
        done = _run(context, config, "finish")
        found = next(config.parent.rglob(ARCHIVE), None) if done else None
        return _reply(message, done=done, **({} if found is None else {"archive": found.read_bytes()}))
    with tempfile.TemporaryDirectory() as folder:
        student = Path(folder) / ARCHIVE
        student.write_bytes(message.content.config_records["archive"]["bytes"])
        return _reply(message, done=_run(context, config, "finish", "--student", str(student)))


def _config(context: Context) -> Path:
    """The party.yaml that the SuperNode was started with; in a simulation, that of its place in a trial's folder."""
    if "party" in context.node_config:
        return Path(str(context.node_config["party"]))
    trial = Path(str(context.run_config["trial"]))
    return sorted(trial.glob("*/party.yaml"))[int(context.node_config["partition-id"])]


def _read(config: Path) -> dict:
    return yaml.safe_load(config.read_text(encoding="utf-8"))


def _run(context: Context, config: Path, step: str, *options: str) -> bool:
    terrine = str(context.node_config.get("terrine", context.run_config.get("terrine", "terrine")))
    with open(config.with_name("flower.log"), "ab") as log:
        command = [terrine, "party", step, "--config", str(config.resolve()), *options]
        return subprocess.run(command, cwd=config.parent, stdout=log, stderr=log, check=False).returncode == 0


def _reply(message: Message, **values: str | bool | bytes) -> Message:
    return Message(content=RecordDict({"said": ConfigRecord(values)}), reply_to=message)
