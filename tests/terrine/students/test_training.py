"""Training by gradient learns, stops by released answers, resumes to the same bits, and does not change its inputs."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from terrine.determinism.randomness import derive_seed, numpy_generator
from terrine.errors import ArtefactError
from terrine.heads import LinearHead, initial_head, predict
from terrine.models.backbone import features_in_batches
from terrine.models.backbone_files import save_backbone
from terrine.students import training
from terrine.students.fixmatch import FixMatchStudent
from terrine.students.freematch import FreeMatchStudent
from terrine.students.gradient import FinetuneStudent, FullStudent
from terrine.students.linear import LinearStudent
from terrine.students.student import STUDENTS
from terrine.students.training import draw
from terrine.students.vat import VATStudent
from tests.terrine.students.helpers import (
    frozen_backbone,
    small_network,
    some_images,
    some_material,
)

pytestmark = pytest.mark.usefixtures("one_thread")

SHORT = {"l2": 0.3, "steps": 40, "train_batch": 16, "learning_rate": 1e-3, "views": 2}
ON_FROZEN = [
    FinetuneStudent(trainable=0, **SHORT),
    FinetuneStudent(trainable=0, augment=True, **SHORT),
    FixMatchStudent(threshold=0.5, **SHORT),
    FreeMatchStudent(augment=True, **SHORT),
    VATStudent(**SHORT),
]
ON_NETWORKS = [
    FinetuneStudent(trainable=50, augment=True, **SHORT),
    FullStudent(**SHORT),
    FixMatchStudent(threshold=0.5, **SHORT),
    FreeMatchStudent(**SHORT),
    VATStudent(**SHORT),
]


def named(kinds):
    return [pytest.param(kind, id=f"{kind.kind}{'-augmented' * kind.augment}") for kind in kinds]


def accuracy(trained, material):
    images, labels = some_images(300, seed=9)
    backbone = trained.backbone or material.backbone
    features = features_in_batches(backbone, images, np.array_split(np.arange(300), 6), material.statistics)
    return (predict(trained.head, features).argmax(1) == labels).mean()


def bytes_of(trained, folder: Path) -> bytes:
    arrays = trained.head.to_arrays()
    content = b"".join(arrays[name].tobytes() for name in sorted(arrays))
    if trained.backbone is not None:
        save_backbone(trained.backbone, folder / "b.safetensors")
        content += (folder / "b.safetensors").read_bytes()
    return content


AS_PUBLISHED = {
    "start": "shared", "epochs": 5, "schedule": "constant", "train_batch": 16, "learning_rate": 1e-3, "l2": 0.0,
    "ema": 0.0, "patience": None,
}  # fmt: skip


def test_training_as_published_is_that_of_adam_from_the_teachers_head():
    """Against a loop of torch's own Adam on the same batches."""
    material = some_material(frozen_backbone(), histograms=False)
    trained = FinetuneStudent(trainable=0, **AS_PUBLISHED).train(material, seed=3)
    answers = len(material.rows)
    steps = 5 * -(-answers // 16)
    assert trained.record["steps"] == steps
    features = torch.from_numpy(material.features("cpu")[material.rows])
    head = initial_head(features.shape[1], material.answers.classes, 3).module()
    optimiser = torch.optim.Adam(head.parameters(), lr=1e-3)
    for step in range(steps):
        batch = draw([np.arange(answers)], 16, numpy_generator(derive_seed(3, "student step", step), "student batch"))
        loss = torch.nn.functional.cross_entropy(
            head(features[batch]), torch.from_numpy(material.answers.targets[batch]).argmax(1)
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    np.testing.assert_allclose(trained.head.weight, head.weight.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("histograms", [True, False], ids=["histograms", "labels"])
@pytest.mark.parametrize("kind", named(ON_FROZEN))
def test_a_head_on_frozen_features_learns_and_the_backbone_is_left_alone(kind, histograms):
    material = some_material(frozen_backbone(), histograms=histograms)
    before = {name: value.clone() for name, value in material.backbone.state_dict().items()}
    trained = kind.model_copy(update={"patience": None}).train(material, seed=0)
    assert accuracy(trained, material) > 0.8
    assert trained.backbone is None
    assert isinstance(trained.head, LinearHead)
    assert all(torch.equal(value, before[name]) for name, value in material.backbone.state_dict().items())


@pytest.mark.parametrize("statistics", ["current", "original"])
@pytest.mark.parametrize("kind", named(ON_NETWORKS))
def test_a_network_learns_and_the_public_backbone_is_left_alone(kind, statistics):
    material = some_material(small_network(), statistics=statistics)
    before = {name: value.clone() for name, value in material.backbone.state_dict().items()}
    trained = kind.model_copy(update={"patience": None}).train(material, seed=0)
    assert accuracy(trained, material) > 0.8
    own = trained.backbone.state_dict()
    assert any(not torch.equal(own[name], before[name]) for name in own)
    assert all(torch.equal(value, before[name]) for name, value in material.backbone.state_dict().items())
    for name in ("network.1.running_mean", "network.1.running_var", "network.1.num_batches_tracked"):
        assert torch.equal(own[name], before[name]), "running statistics are not the student's to change"


def test_fine_tuning_changes_the_last_weights_alone():
    material = some_material(small_network())
    before = {name: value.clone() for name, value in material.backbone.state_dict().items()}
    trained = FinetuneStudent(trainable=50, patience=None, **SHORT).train(material, seed=0)
    changed = {name for name, value in trained.backbone.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"network.5.weight", "network.5.bias"}
    assert trained.record["trained_share"] == pytest.approx(100 * 1164 / 1230, abs=0.01)


def test_without_a_term_a_linear_head_by_gradient_ends_where_the_exact_fit_does():
    material = some_material(frozen_backbone(), answered=120)
    kind = FinetuneStudent(l2=0.3, trainable=0, patience=None, steps=400, train_batch=120, learning_rate=0.01)
    trained = kind.train(material, seed=0)
    exact = LinearStudent(l2=0.3).train(material, seed=0).head
    features = material.features("cpu")
    np.testing.assert_allclose(predict(trained.head, features), predict(exact, features), atol=0.01)


def test_the_moment_that_held_out_answers_like_best_is_kept_and_training_ends_when_they_do_not():
    material = some_material(frozen_backbone(), histograms=False, answered=200)
    wild = FinetuneStudent(l2=0.3, trainable=0, steps=400, train_batch=8, learning_rate=1.0, patience=2, ema=0.0)
    trained = wild.train(material, seed=0)
    record = trained.record
    losses = {row["step"]: row["held_out_loss"] for row in record["history"]}
    assert record["held_out"] == 25
    assert record["chosen_step"] == min(losses, key=losses.get)
    assert record["steps"] < 400
    assert sorted(losses)[-1] == record["steps"]
    assert all(losses[step] > losses[record["chosen_step"]] for step in sorted(losses)[-2:])


def test_the_weights_of_a_network_are_those_of_the_chosen_moment():
    material = some_material(small_network(), statistics="original")
    kind = FullStudent(l2=0.3, steps=20, train_batch=16, learning_rate=0.003, patience=100, ema=0.0)
    trained = kind.train(material, seed=0)
    losses = {row["step"]: row["held_out_loss"] for row in trained.record["history"]}
    chosen = trained.record["chosen_step"]
    assert 0 < chosen < 20, "a training whose last moment is its best would show nothing"
    split = training.split_answers(material.rows, [np.arange(240)], seed=0)
    images = torch.tensor(material.pool.images[material.rows[split.held_out]])
    scores = trained.head.module()(trained.backbone.features(images, "original"))
    own = material.answers.loss(scores, torch.tensor(material.answers.targets[split.held_out])).mean()
    assert own.item() == pytest.approx(losses[chosen], rel=1e-5)


def test_what_is_kept_is_a_moving_average_whose_memory_grows(monkeypatch):
    seen = []
    step = torch.optim.AdamW.step

    def watched(self):
        step(self)
        seen.append(self.param_groups[0]["params"][0].detach().clone().double())

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    material = some_material(frozen_backbone())
    start = LinearStudent(l2=0.3).train(material, seed=0).head.weight
    trained = FinetuneStudent(l2=0.3, trainable=0, patience=None, steps=12, learning_rate=0.05, ema=0.3).train(
        material, seed=0
    )
    average = torch.tensor(start).double()
    for number, weight in enumerate(seen, start=1):
        share = min(0.3, number / (number + 9))
        average = share * average + (1 - share) * weight
    np.testing.assert_allclose(trained.head.weight, average.numpy(), atol=1e-5)
    assert np.abs(trained.head.weight - seen[-1].numpy()).max() > 1e-3


def test_where_training_does_not_help_the_linear_student_of_all_answers_is_kept():
    for backbone, share in ((frozen_backbone(), 0.0), (small_network(), 100.0)):
        material = some_material(backbone)
        ruinous = FinetuneStudent(
            l2=0.3, trainable=share, steps=40, train_batch=8, learning_rate=5.0, patience=2, ema=0.0
        )
        trained = ruinous.train(material, seed=0)
        assert trained.record["chosen_step"] == 0
        linear = LinearStudent(l2=0.3).train(material, seed=0)
        np.testing.assert_allclose(trained.head.weight, linear.head.weight, atol=1e-6)


def test_held_out_answers_are_not_fitted():
    material = some_material(frozen_backbone())
    split = training.split_answers(material.rows, [np.arange(240)], seed=0)
    assert len(split.held_out) == 20
    assert sorted([*split.kept, *split.held_out]) == list(range(160))
    changed = material.answers.targets.copy()
    changed[split.held_out] = changed[split.held_out][:, ::-1]
    other = replace(material, answers=replace(material.answers, targets=changed))
    kind = FinetuneStudent(trainable=0, patience=100, **SHORT)
    weights = []
    for own in (material, other):
        run = training._Training(
            own, kind, split, name="t", percent=0, seed=0,
            device=torch.device("cpu"), work=None, progress=None,
        )  # fmt: skip
        run.run(10)
        weights.append([average.numpy().tobytes() for average in run.average])
    assert weights[0] == weights[1]


def test_few_answers_are_all_used_for_fitting():
    material = some_material(frozen_backbone(), answered=40)
    assert FinetuneStudent(trainable=0, **SHORT).train(material, seed=0).record["held_out"] == 0


@pytest.mark.parametrize("kind", named([ON_FROZEN[3], ON_NETWORKS[2]]))
def test_a_student_depends_on_its_seed_alone(kind, tmp_path):
    backbone = frozen_backbone if kind.kind == "freematch" else small_network
    short, results = kind.model_copy(update={"patience": None, "steps": 10}), []
    for seed in (0, 0, 1):
        torch.manual_seed(len(results))
        np.random.seed(len(results))  # noqa: NPY002  # training must not read the global state
        results.append(bytes_of(short.train(some_material(backbone()), seed=seed), tmp_path))
    assert results[0] == results[1] != results[2]


def test_a_head_is_the_same_bytes_on_one_thread_and_on_two(tmp_path):
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(bytes_of(ON_FROZEN[3].train(some_material(frozen_backbone()), seed=0), tmp_path))
    assert results[0] == results[1]


def test_a_training_batch_never_mixes_sources_under_current_statistics(monkeypatch):
    material = some_material(small_network())
    source = np.empty(240, dtype=object)
    for batch, name in zip(material.pool.batches, material.pool.sources, strict=True):
        source[batch] = name
    seen = []
    plain = training.ImageInputs.plain
    monkeypatch.setattr(training.ImageInputs, "plain", lambda self, rows: (seen.append(rows), plain(self, rows))[1])
    FixMatchStudent(**SHORT).train(material, seed=0)
    assert len(seen) > 100
    assert all(len(set(source[rows])) == 1 and len(rows) > 1 for rows in seen)
    seen.clear()
    FixMatchStudent(**SHORT).train(replace(material, statistics="original"), seed=0)
    assert any(len(set(source[rows])) == 2 for rows in seen)


def test_images_without_answers_are_looked_at():
    """Pixels of unanswered images affect the students of every kind that learns from them."""
    for kind in (ON_FROZEN[2], ON_FROZEN[3], VATStudent(**SHORT), FinetuneStudent(trainable=0, **SHORT)):
        heads = []
        for other in (False, True):
            material = some_material(frozen_backbone(), statistics="original", answered=120)
            unanswered = np.setdiff1d(np.arange(240), material.rows)
            if other:
                material.pool.images[unanswered] = 255 - material.pool.images[unanswered]
            short = kind.model_copy(update={"patience": None, "steps": 10})
            heads.append(short.train(material, seed=0).head.weight)
        assert np.array_equal(*heads) == (kind.kind == "finetune")


RESUMED = ("freematch-frozen", "vat-network", "full-network")

KILLED = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[2])
from terrine.students import training
from terrine.students.student import STUDENTS
from tests.terrine.students.helpers import frozen_backbone, small_network, some_material
training._REPORT_SECONDS = training.CHECKPOINT_SECONDS = 0
def kill(fraction, text):
    if fraction >= 0.5:
        os.kill(os.getpid(), signal.SIGKILL)
for case in sys.argv[3:]:
    process = os.fork()  # each has a process of its own, and torch is imported once
    if process == 0:
        name, where = case.split("-")
        backbone = frozen_backbone if where == "frozen" else small_network
        kind = STUDENTS.of(name)(l2=0.3, steps=40, train_batch=16, views=2, patience=100)
        kind.train(some_material(backbone()), seed=0, work=Path(sys.argv[1]) / case, progress=kill)
        os._exit(0)
    print(case, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory, pytestconfig):
    """The folder of what trainings left behind whose processes were killed half-way."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-c", KILLED, str(folder), str(pytestconfig.rootpath), *RESUMED]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=pytestconfig.rootpath)
    assert done.stdout.splitlines() == [f"{case} -9" for case in RESUMED]
    return folder


@pytest.mark.parametrize("case", RESUMED)
def test_a_training_that_is_killed_and_resumed_ends_with_the_same_bytes(case, killed, tmp_path, monkeypatch):
    name, where = case.split("-")
    backbone = frozen_backbone if where == "frozen" else small_network
    kind = STUDENTS.of(name)(l2=0.3, steps=40, train_batch=16, views=2, patience=100)
    whole = kind.train(some_material(backbone()), seed=0, work=tmp_path / "whole")
    work = killed / case
    assert [path.name for path in work.iterdir()] == ["training"]
    monkeypatch.setattr(training, "_REPORT_SECONDS", 0)
    steps = []
    resumed = kind.train(
        some_material(backbone()),
        seed=0,
        work=work,
        progress=lambda fraction, text: steps.append((text.split(":")[0], round(40 * fraction))),
    )
    first = [step for phase, step in steps if phase == "training"]
    assert 19 <= first[0] <= 21
    assert first[-1] == 40
    assert bytes_of(resumed, tmp_path) == bytes_of(whole, tmp_path)
    assert resumed.record == whole.record
    assert (work / "training").read_bytes() == (tmp_path / "whole" / "training").read_bytes()


def test_a_finished_training_is_loaded_and_not_repeated(tmp_path):
    kind, calls = FullStudent(**SHORT), []
    first = kind.train(some_material(small_network()), seed=0, work=tmp_path)
    again = kind.train(some_material(small_network()), seed=0, work=tmp_path, progress=lambda *call: calls.append(call))
    assert calls == []
    assert bytes_of(first, tmp_path) == bytes_of(again, tmp_path)


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    kind = FinetuneStudent(trainable=0, **SHORT)
    kind.train(some_material(frozen_backbone()), seed=0, work=tmp_path)
    for other, seed, words in ((kind, 1, "seed"), (kind.model_copy(update={"l2": 1.0}), 0, "settings")):
        with pytest.raises(ArtefactError, match=f"{words}.* differ"):
            other.train(some_material(frozen_backbone()), seed=seed, work=tmp_path)
    with pytest.raises(ArtefactError, match=r"answers.* differ"):
        kind.train(some_material(frozen_backbone(), histograms=False), seed=0, work=tmp_path)
    path = tmp_path / "training"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ArtefactError, match="cannot be read"):
        kind.train(some_material(frozen_backbone()), seed=0, work=tmp_path)


@pytest.mark.parametrize("name", STUDENTS.names())
def test_every_kind_is_made_of_its_defaults_and_has_no_setting_of_another(name):
    student = STUDENTS.of(name)()
    assert student.kind == name
    own = set(type(student).model_fields)
    for other in {key for kind in STUDENTS.names() for key in STUDENTS.of(kind).model_fields} - own:
        with pytest.raises(ValidationError, match=other):
            STUDENTS.of(name)(**{other: 1})
    assert ("trainable" in own) == (name not in ("linear", "forest", "full", "sums"))
    assert ("pool" in own) == student.uses_unlabelled
