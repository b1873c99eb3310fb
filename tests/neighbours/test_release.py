"""Two neighbouring datasets publish the same bytes, except for the noisy outcome itself."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.execution import Executor
from flows.stages import run_tasks, run_through
from tasks.artefacts.released import sums_over_records
from tasks.config.params import public_parameters, validate
from tasks.config.values import as_yaml, merge
from tasks.pipeline import mlflow_logging as tracking
from tasks.pipeline import mlflow_runs
from tasks.pipeline.graph import MAIN
from tasks.pipeline.sums import load_summed_records
from tasks.runtime import release_identity as identity
from tasks.runtime.accounts import open_account
from tasks.runtime.progress import measured
from tasks.runtime.release_identity import data_changes
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, write_text
from terrine.aggregation import release
from terrine.aggregation.sums import Sums
from terrine.teachers.averaging.private import PrivateAveraging
from tests.neighbours import worlds
from tests.neighbours.formats import FORMATS
from tests.neighbours.kinds import KINDS
from tests.neighbours.runs import files, outcome, settle

FORM = FORMATS["npz with ids"]
REPOSITORY = Path(__file__).resolve().parents[2]
NEIGHBOURS = [
    ("record", "replaced", "averaged, private"),
    ("record", "removed", "linear, ridge"),
    ("group", "larger", "averaged, private"),
]


def neighbour(world, unit, step):
    """Return a world that differs in a unit that teachers of the format learn from."""
    one = "r211" if unit == "record" else "person 02"
    return worlds.STEPS[unit][step].make(world, unit, one, FORM.positional, FORM.classes)


@pytest.mark.parametrize(("unit", "step", "kind"), NEIGHBOURS)
def test_a_release_made_again_on_a_neighbour_is_the_stored_one_and_only_its_keeper_is_told(tmp_path, unit, step, kind):
    world = worlds.base()
    run = settle(tmp_path, FORM, world, privacy={"unit": unit}, **KINDS[kind])
    run_through(run, "dataset", "aggregate")
    before, released = outcome(run), files(run.folders.release)
    ledger, account = open_account(run)
    charged = ledger.events(account)
    assert data_changes(run) == []
    FORM.write(tmp_path, neighbour(world, unit, step))
    run_through(run, "dataset", "aggregate")
    after = outcome(run)
    assert len(before.moved(after)) == 1
    assert files(run.folders.release) == released
    assert after.public == before.public
    assert ledger.events(account) == charged
    assert any("data.edition=2" in told for told in data_changes(run))


def untimed(figures):
    """Return figures by name, with None for durations and for rates per second."""
    return {name: None if "second" in name else value for name, value in figures.items()}


class Tracker:
    """Stands for MLflow: remembers what it is given, and the bytes of every file."""

    def __init__(self, root: Path) -> None:
        self.given: list[tuple] = []
        self._root = str(root)

    def __getattr__(self, name):
        def take(*arguments, **options):
            paths = [Path(argument) for argument in arguments if str(argument).startswith(self._root)]
            content = [files(path) if path.is_dir() else path.read_bytes() for path in paths]
            # The duration of public work varies between runs, even on the same dataset.
            shown = [untimed(argument) if isinstance(argument, dict) else argument for argument in arguments]
            self.given.append(
                (name, repr(shown).replace(self._root, ""), repr(options).replace(self._root, ""), content)
            )

        return take

    def MlflowClient(self):
        return SimpleNamespace(search_runs=lambda *_: [])

    def set_experiment(self, name):
        return SimpleNamespace(experiment_id=name)

    def start_run(self, **options):
        self.given.append(("start_run", repr(options)))

        class Active:
            info = SimpleNamespace(run_id="1")

            def __enter__(self):
                return self

            def __exit__(self, *_):
                return None

        return Active()


@pytest.fixture
def same_outcome(monkeypatch):
    """Make every release after the first have its noisy outcome: what else differs is no function of the outcome."""
    drawn: dict = {}

    def once(owner, name):
        draw = getattr(owner, name)

        def replay(*arguments, **options):
            key = name, *(argument for argument in arguments if isinstance(argument, int))
            if key not in drawn:
                drawn[key] = draw(*arguments, **options)
            return drawn[key]

        monkeypatch.setattr(owner, name, replay)

    once(release, "answer_in_rounds")
    once(Sums, "release")
    once(PrivateAveraging, "release")
    # Every release draws a new salt for this digest, see the last test.
    monkeypatch.setattr(identity, "partition_commitment", lambda *_: "the partition's digest")
    return drawn


@pytest.mark.parametrize(
    ("unit", "step", "kind"), [*NEIGHBOURS[1:], ("record", "replaced", "moments"), ("record", "removed", "gradients")]
)
def test_files_and_figures_of_a_release_are_functions_of_its_noisy_outcome(
    tmp_path, monkeypatch, same_outcome, unit, step, kind
):
    world = worlds.base()
    found = []
    for number, data in enumerate((world, neighbour(world, unit, step))):
        sections = {"privacy": {"unit": unit}, "tracking": {"private_metrics": False, "register_student": False}}
        own = KINDS.get(kind) or {"aggregation": {"mechanism": kind, "epsilon": 30}, "student": {"kind": "sums"}}
        run = settle(tmp_path / str(number), FORM, data, **sections, **own)
        for name in ("params.yaml", "dvc.yaml"):
            shutil.copy(REPOSITORY / name, run.root)
        (run.root / "experiments").mkdir()
        (run.root / "experiments" / f"{run.name}.yaml").write_text("description: a neighbour\n")
        if number:
            (run.root / "data" / "private" / "ledger").mkdir(parents=True)
            shutil.copy(tmp_path / "0" / "data" / "private" / "ledger" / "key", run.root / "data/private/ledger/key")
        found.append(published(run, monkeypatch))
    assert len(same_outcome) == (2 if kind.startswith("averaged") else 1)
    assert found[0][0] != found[1][0]  # the votes, or the sums
    for one, other in zip(found[0][1:], found[1][1:], strict=True):
        assert one == other


def test_two_releases_of_the_same_data_publish_digests_of_the_partition_that_have_nothing_in_common(tmp_path):
    run = settle(tmp_path, FORM, worlds.base())
    run_through(run, "dataset", "aggregate")
    first = read_json(run.folders.statement)["partition_digest"]
    again = Run(run.root, run.name, validate(merge(run.params.model_dump(mode="json"), {"data": {"edition": "2"}})))
    run_through(again, "aggregate", "aggregate")
    assert read_json(run.folders.statement)["partition_digest"] != first


def published(run: Run, monkeypatch) -> tuple:
    """Take a run to its end; return its votes or sums, and bytes of what is public, released and given to MLflow."""
    tracker = Tracker(run.root)
    monkeypatch.setitem(sys.modules, "mlflow", tracker)
    # Record the public inputs directly, and replace MLflow's client and database with the tracker.
    monkeypatch.setattr(tracking, "_log_queries", lambda said: tracker.given.append(repr(said["public_inputs"])))
    monkeypatch.setattr(tracking, "open_experiment", lambda run: (tracker, "1"))
    monkeypatch.setattr(mlflow_runs, "create_database", lambda run: None)
    write_text(run.folders.public_parameters, as_yaml(public_parameters(run.params)))
    for stage in MAIN.between("dataset", "evaluate"):
        with measured(run, stage.name):
            run_tasks(stage, run, Executor())
    assert tracking.log_run.fn(run) is not None
    zones = [files(run.root / "data" / zone) for zone in ("public", "release")]
    private = load_summed_records(run).second_moments() if sums_over_records(run) else outcome(run).votes
    return private.tobytes(), *zones, tracker.given
