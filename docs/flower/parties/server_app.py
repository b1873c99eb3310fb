"""What the SuperLink does: it waits for all parties and starts one step after another.

Guardian and student party run `terrine party serve` themselves.
"""

import time
from collections.abc import Iterable
from logging import INFO, WARNING

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Have every teacher party submit, and the student party make the student, which every teacher party evaluates."""
    limit = float(context.run_config["limit"])
    nodes = _wait(grid, int(context.run_config["parties"]), float(context.run_config["wait"]))
    said = _ask(grid, "query.who", nodes, limit)
    if any("name" not in answer for answer in said.values()):
        raise RuntimeError("A SuperNode does not know its party: start it with --node-config 'party=\"…/party.yaml\"'.")
    names = {node: str(answer["name"]) for node, answer in said.items()}
    roles = {node: str(answer["role"]) for node, answer in said.items()}
    log(INFO, "Here: %s", ", ".join(f"{names[node]} ({roles[node]})" for node in nodes))
    held = list(roles.values())
    if held.count("guardian") != 1 or held.count("student") != 1:
        raise RuntimeError("A collaboration has one guardian and one student party.")
    teachers = [node for node in nodes if roles[node] == "teacher"]
    (student,) = (node for node in nodes if roles[node] == "student")
    _all_done("submit", names, _ask(grid, "train.submit", teachers, limit))
    made = _ask(grid, "train.finish", [student], limit)
    _all_done("finish", names, made)
    archive = {"archive": ConfigRecord({"bytes": made[student]["archive"]})}
    _all_done("finish", names, _ask(grid, "train.finish", teachers, limit, archive))


def _wait(grid: Grid, count: int, seconds: float) -> list[int]:
    end = time.monotonic() + seconds
    while len(nodes := sorted(grid.get_node_ids())) < count:
        if time.monotonic() > end:
            raise RuntimeError(f"{len(nodes)} of {count} parties are here after {seconds:g} s.")
        time.sleep(1.0)
    return nodes


def _ask(
    grid: Grid, kind: str, nodes: Iterable[int], limit: float, content: dict[str, ConfigRecord] | None = None
) -> dict[int, ConfigRecord]:
    """Ask nodes, and wait for all of them; return what each said. Who said nothing has not done it."""
    said = {node: ConfigRecord({"done": False}) for node in nodes}
    messages = [Message(content=RecordDict(content or {}), dst_node_id=node, message_type=kind) for node in said]
    for answer in grid.send_and_receive(messages, timeout=limit):
        if answer.has_error():
            log(WARNING, "A party's SuperNode failed: %s", answer.error.reason)
        else:
            said[answer.metadata.src_node_id] = answer.content.config_records["said"]
    return said


def _all_done(step: str, names: dict[int, str], said: dict[int, ConfigRecord]) -> None:
    failed = [names[node] for node, answer in said.items() if not answer["done"]]
    log(INFO, "%s: done at %s", step, ", ".join(names[node] for node in said if names[node] not in failed) or "nobody")
    if failed:
        raise RuntimeError(f"{step} failed at {', '.join(failed)}: flower.log there, beside party.yaml, says why.")
