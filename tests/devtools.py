"""A browser without a window, driven by the DevTools protocol: files can be chosen, which no page may do by itself."""

import contextlib
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect


class Page:
    """A page in a browser."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection, self._numbers = connection, itertools.count(1)
        self.messages: list[str] = []
        for domain in ("Page", "Runtime", "DOM", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **values: Any) -> dict[str, Any]:
        """Send a command and return its result; errors of the page are collected in `messages`."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": values}))
        while True:
            answer = json.loads(self._connection.recv(timeout=60))
            if answer.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.messages.append(json.dumps(answer["params"]))
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript, awaited."""
        found = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open(self, address: str) -> None:
        """Open an address and wait until the page is complete."""
        self.send("Page.navigate", url=address)
        self.wait(f"document.readyState === 'complete' && location.href === {json.dumps(address)}")

    def wait(self, condition: str) -> None:
        """Wait until an expression of JavaScript is true."""
        ends = time.monotonic() + 60
        while not self.evaluate(condition):
            assert time.monotonic() < ends, condition
            time.sleep(0.05)

    def choose(self, selector: str, path: Path) -> None:
        """Choose a file or folder in an input field."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(path)])


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Start a browser with a new profile in a folder; skip the test if there is no browser."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium here")
    quiet = ["--no-first-run", "--disable-background-networking", "--disable-sync", "--disable-gpu", "--no-sandbox"]
    command = [program, "--headless", "--remote-debugging-port=0", f"--user-data-dir={folder / 'profile'}", *quiet]
    process = subprocess.Popen([*command, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith("DevTools listening on "))
        with connect(line.removeprefix("DevTools listening on ").strip(), max_size=None) as whole:
            whole.send(json.dumps({"id": 0, "method": "Target.getTargets"}))
            targets = json.loads(whole.recv(timeout=60))["result"]["targetInfos"]
            target = next(each["targetId"] for each in targets if each["type"] == "page")
        place = line.split("/devtools/")[0].removeprefix("DevTools listening on ")
        with connect(f"{place}/devtools/page/{target}", max_size=None) as connection:
            yield Page(connection)
    finally:
        process.terminate()
        process.wait(30)
        assert process.stderr is not None
        process.stderr.close()
