"""Random histories of accounts, compared after every step with what each person was promised and what was published.

A world of twenty people is written as files, arrays or tables; runs read it through the real stages and release through
the real ledger. People leave and come back, are renamed and saved in other formats; runs choose other accounts,
editions, splits, pools, sizes and tasks. Some of these are refused. The test's ground truth does not come from
Terrine: the test writes the data and recognises people by their pixels or by a column with numbers.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from PIL import Image

from tasks.config.params import validate
from tasks.pipeline.dataset import prepare_dataset
from tasks.pipeline.public_inputs import describe_records
from tasks.pipeline.synthesize import assemble_images, plan
from tasks.runtime.accounts import noise_source, open_ledger, release_at_price
from tasks.runtime.releases import identity_in_ledger
from tasks.runtime.run import Run
from tasks.runtime.store import read_array, read_json, write_json
from tasks.runtime.task import load_task
from terrine.data.images import resize
from terrine.data.units import name_codes
from terrine.errors import TerrineError
from terrine.privacy.accounting.events import Event, GaussianEvent, compose
from terrine.privacy.accounting.pricing import price
from terrine.privacy.facts import applicable

PEOPLE, SIDE, DELTA = 30, 8, 1e-5
PIXELS = np.random.default_rng(7).integers(0, 256, (PEOPLE, 1, SIDE, SIDE), dtype=np.uint8)
NUMBERS = np.random.default_rng(8).normal(size=(PEOPLE, 2))
EVENT = GaussianEvent(1.0, 8.0)
STEPS = int(os.environ.get("TERRINE_HISTORY_STEPS", "1000"))
A_HISTORY = 40
"""Most steps in a history; many are shorter."""

FORMS = ("folder", "npz", "npz with ids", "table", "table with ids", "table with groups")
TASKS = {
    "shoe": ("no", "shoe"),
    "sleeves": ("with", "without"),
    "three": ("a", "b", "c"),
}

CHOICES = {
    "account": st.sampled_from(["one", "one", "one", "one", "two"]),
    "edition": st.sampled_from(["1", "1", "1", "2"]),
    "declared": st.sampled_from([True, True, True, False]),
    "test_fraction": st.sampled_from([0.2, 0.5]),
    "fraction": st.sampled_from([0.3, 0.4, 0.6]),
    "size": st.sampled_from([8, 12]),
    "task": st.sampled_from(list(TASKS)),
    "sigma": st.sampled_from([5.0, 6.0]),
    "images_first": st.booleans(),
    "changes": st.lists(
        st.tuples(st.integers(0, PEOPLE - 1), st.sampled_from(["leave or come back", "r0", "r1"])), max_size=2
    ),
}


class Histories(RuleBasedStateMachine):
    """A site whose ground truth is kept beside it."""

    steps = 0

    def __init__(self) -> None:
        super().__init__()
        shared = Path("/dev/shm")
        self.root = Path(tempfile.mkdtemp(prefix="terrine", dir=shared if shared.is_dir() else None))
        self.present = set(range(PEOPLE))
        self.names = [f"p{person:02}" for person in range(PEOPLE)]
        self.suffix, self.runs, self.together = "png", 0, {name: {name} for name in ("one", "two")}
        self.form, self.known = "folder", (0, 1)
        # Ground truth, by account: what was drawn about whom, who was protected, who was published.
        self.drawn: dict[str, list[tuple[Event, frozenset[int]]]] = defaultdict(list)
        self.protected: dict[str, set[int]] = defaultdict(set)
        self.published: dict[str, set[int]] = defaultdict(set)

    def teardown(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    # Changes of people and their files.

    @initialize(form=st.sampled_from(FORMS))
    def begin(self, form: str) -> None:
        self.form = form

    @rule(form=st.integers(0, 3), suffix=st.sampled_from(["png", "bmp", "tiff"]))
    def keep_the_data_otherwise(self, form: int, suffix: str) -> None:
        # A row of a table does not identify the person in an image.
        alike = [self.form] + [one for one in FORMS if one.startswith("table") == self.form.startswith("table")]
        self.form, self.suffix = alike[form], suffix
        Histories.steps += 1

    @precondition(lambda self: self.runs > 20)
    @rule()
    def link_the_accounts(self) -> None:
        ledger = open_ledger(self._run("one"))
        try:
            ledger.link(ledger.named("one"), ledger.named("two"))
        except TerrineError:
            return
        self.together = {name: {"one", "two"} for name in ("one", "two")}

    # Runs by the operator.

    @rule(**CHOICES, pool=st.just(True))
    def run_with_a_pool(self, **chosen: Any) -> None:
        self._make(**chosen)

    @rule(**CHOICES)
    def run(self, **chosen: Any) -> None:
        self._make(**chosen)

    def _make(self, account: str, task: str, images_first: bool, changes: list[tuple[int, str]], **chosen: Any) -> None:
        """Let people leave, come back or be renamed; then make a run, and note whom it publishes and protects."""
        Histories.steps += 1
        for person, to in changes:
            if to != "leave or come back":
                self.names[person] = f"{to}p{person:02}"
            elif self.present != {person}:
                self.present ^= {person}
        run = self._run(account, classes=list(TASKS[task]) if chosen.pop("declared") else None, **chosen)
        self._write(run.params.data.path, task)
        stages = [lambda: prepare_dataset.fn(run)]
        if not plan(run):  # all queries are records that are public; what programs draw is of no interest here
            stages.append(lambda: assemble_images.fn(run, []))
        try:
            for stage in reversed(stages) if images_first else stages:
                stage()
        except TerrineError:
            self._note_publications(run)
            return
        self._note_publications(run)
        taught = self._taught(run)
        try:
            released = self._release(run, task, taught)
        except TerrineError:
            return
        assert released == task, "a release about one task is not given to another"
        self._statement_discloses(run)

    def _run(self, account: str, **chosen: Any) -> Run:
        """Return a run about the data in their present form."""
        self.runs += 1
        table, groups = self.form.startswith("table"), self.form == "table with groups"
        data: dict[str, Any] = {"path": self.root / "data" / "private" / "source" / self.form.replace(" ", "-")}
        data |= {"edition": chosen.get("edition", "1"), "test_fraction": chosen.get("test_fraction", 0.2)}
        values: dict[str, Any] = {"privacy": {"unit": "group" if groups else "record"}}
        if table:
            data |= {"name": "table", "target": "label", "public_fraction": min(chosen.get("fraction", 0.3), 0.4)}
            data |= {"id": "name"} if self.form == "table with ids" else {}
            data |= {"group": "person"} if groups else {}
            data |= {"classes": chosen.get("classes")}
            data["path"] = data["path"].with_suffix(".csv")
            values |= {"backbone": {"kind": "columns"}}
        else:
            data |= {"name": self.form.split()[0], "size": chosen.get("size", 8)}
            if chosen.get("pool"):
                data |= {"pool": "test", "pool_fraction": chosen["fraction"]}
                values |= {"queries": {"sources": {"pool": 1}, "count": 2, "batch": 2}}
            else:
                values |= {"queries": {"sources": {"gaussian": 1}, "count": 2, "batch": 2}}
            if self.form.startswith("npz"):
                data |= {"classes": chosen.get("classes"), "path": data["path"].with_suffix(".npz")}
        values |= {
            "data": data,
            "partition": {"teachers": 2},
            "aggregation": {"mechanism": "histogram", "sigma": chosen.get("sigma", 5.0), "epsilon": 40},
            "ledger": {"account": account, "epsilon": 100},
        }
        return Run(self.root, f"run-{self.runs}", validate(values))

    def _write(self, path: Path, task: str) -> None:
        """Write the data of all present people in the current form, labelled for a task."""
        people, classes = sorted(self.present), TASKS[task]
        labels = [classes[(person + person // 7) % len(classes)] for person in people]
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.form == "folder":
            for name in classes:
                (path / name).mkdir(parents=True)
            for person, label in zip(people, labels, strict=True):
                Image.fromarray(PIXELS[person, 0]).save(path / label / f"{self.names[person]}.{self.suffix}")
        elif self.form.startswith("npz"):
            ids = {"ids": [self.names[person] for person in people]} if self.form.endswith("ids") else {}
            np.savez(path, images=PIXELS[people, 0], labels=np.array(labels), **ids)
        else:
            rows = ["number,x,y,name,person,label"]
            for person, label in zip(people, labels, strict=True):
                for row in range(2 if self.form.endswith("groups") else 1):
                    x, y = NUMBERS[person] + row
                    name = f"{self.names[person]}-{row}"
                    rows.append(f"{person + row / 2},{x!r},{y!r},{name},person {person},{label}")
            columns = {"table": "name person", "table with ids": "person", "table with groups": "name"}[self.form]
            kept = [place for place, name in enumerate(rows[0].split(",")) if name not in columns.split()]
            path.write_text("\n".join(",".join(row.split(",")[place] for place in kept) for row in rows))

    def _taught(self, run: Run) -> frozenset[int]:
        """Return who is in the training records that a run's stages stored, by their pixels or names."""
        if run.params.data.of_images:
            shown = read_array(run.folders.dataset / "train_images.npy")
            return frozenset(self._by_pixels(shown))
        people = sorted(self.present)
        rows = [(person, row) for person in people for row in range(2 if self.form.endswith("groups") else 1)]
        texts = [f"{self.names[person]}-{row}" for person, row in rows]
        if self.form != "table with ids":
            texts = [str(place) for place in range(len(rows))]
        known = dict(zip(name_codes(texts).tolist(), rows, strict=True))
        codes = read_array(run.folders.dataset / "train_names.npy")
        return frozenset(known[code][0] for code in codes.tolist())

    def _by_pixels(self, shown: np.ndarray) -> set[int]:
        side = shown.shape[-1]
        files = [np.asarray(Image.fromarray(one[0]).resize((side, side), Image.Resampling.BILINEAR)) for one in PIXELS]
        known = [*zip(range(PEOPLE), resize(PIXELS, side, "stretch")[:, 0], strict=True), *enumerate(files)]
        return {person for image in shown for person, pixels in known if np.array_equal(image[0], pixels)}

    def _release(self, run: Run, task: str, taught: frozenset[int]) -> str:
        """Release about a run's records through the ledger; return the task that the release says it is about."""
        account = str(run.params.ledger.account)
        names = read_json(run.folders.dataset / "manifest.json")["class_names"]
        assert set(names) == set(TASKS[task])

        def draw() -> dict[str, np.ndarray]:
            self.drawn[account].append((EVENT, taught))
            return {"task": np.frombuffer(task.encode(), np.uint8)}

        identity = identity_in_ledger(run, "answers")
        release = release_at_price(run, identity, EVENT, noise_source(run), draw, task=load_task(run))
        if not release.reused:  # people published before are not protected by it
            self.protected[account] |= taught - self._publications(account)
        return release.arrays["task"].tobytes().decode()

    def _publications(self, account: str) -> set[int]:
        return set().union(*(self.published[name] for name in self.together[account]))

    def _note_publications(self, run: Run) -> None:
        """Assert that public people were not protected before, unless they were public then."""
        account, people = str(run.params.ledger.account), self._published_now(run)
        protected = set().union(*(self.protected[name] for name in self.together[account]))
        exposed = people & protected - self._publications(account)
        assert not exposed, f"{exposed} are protected by a release and lie in data/public/{run.name}"
        self.published[account] |= people

    def _published_now(self, run: Run) -> set[int]:
        """Return whose records lie in data/public of a run."""
        folder = run.folders.images
        if not (folder / "manifest.json").is_file():
            return set()
        if run.params.data.of_images:
            return set().union(*(self._by_pixels(np.load(path)) for path in folder.glob("*-pool.npy")))
        (column,) = [one for one in read_json(folder / "manifest.json")["columns"] if one["name"] == "number"]
        knots = np.array(column["knots"])
        values = np.load(folder / "queries-00000.npy")[:, : len(knots)] @ knots
        return set(np.floor(values + 0.01).astype(int).tolist())

    def _statement_discloses(self, run: Run) -> None:
        """Assert that a statement's facts and sentences about public records are true."""
        if not (run.folders.images / "manifest.json").is_file():
            return
        write_json(run.folders.backbone / "manifest.json", {"kind": "none", "origin": "a test", "sha256": "0" * 64})
        facts = describe_records(run)["facts"]
        known = {item.why: item.count for item in facts.unprotected}
        files = [*run.folders.images.glob("*-pool.npy")]
        if not run.params.data.of_images:
            files = [run.folders.images / "queries-00000.npy"]
        here = sum(len(np.load(path)) for path in files)
        assert known.pop("own images", 0) + known.pop("own rows", 0) == here
        people = self._published_now(run)
        assert bool(known.pop("published earlier", 0)) == bool(
            self._publications(str(run.params.ledger.account)) - people
        )
        assert not known
        said = {"facts": facts.to_json(), "unit": run.params.privacy.unit, "mechanism": {}}
        assert len(list(applicable(said, "unprotected"))) == len(facts.unprotected)
        real = [item for item in facts.examples if item.origin in ("own rows", "own images")]
        assert bool(real) == bool(people)

    @invariant()
    def everybodys_total_is_known(self) -> None:
        if self.known == (known := (sum(map(len, self.drawn.values())), len(self.together["one"]))):
            return
        self.known = known
        ledger = open_ledger(self._run("one"))
        spent = {name: ledger.spent(ledger.named(name), DELTA) for name in self.drawn}
        for person in range(PEOPLE):
            events: dict[frozenset[str], list[Event]] = defaultdict(list)
            for account, releases in self.drawn.items():
                own = [event for event, people in releases if person in people]
                events[frozenset(self.together[account])] += own
            totals = {names: compose(*own) for names, own in events.items() if own}
            assert len(totals) < 2, f"{person} is in {len(totals)} accounts that do not add up"
            for names, total in totals.items():
                told = min(spent[name] for name in names if name in spent)
                assert price(total, DELTA) <= told * (1 + 1e-9)


def test_histories_of_accounts_protect_everybody_whom_a_release_protected() -> None:
    Histories.steps = 0
    run_state_machine_as_test(
        Histories,
        settings=hypothesis.settings(
            max_examples=max(5, STEPS // 18),
            stateful_step_count=A_HISTORY,
            deadline=None,
            derandomize=STEPS == 1000,
            suppress_health_check=list(hypothesis.HealthCheck),
            database=None,
            phases=[hypothesis.Phase.generate],
        ),
    )
    assert Histories.steps >= STEPS
