"""Teachers of a transcription: partition of records, randomised labels, and training or loading of models."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from tasks.artefacts.records import partition_settings, read_assignment, read_dataset
from tasks.config.values import digest
from tasks.pipeline.partition import deal_records
from tasks.runtime.accounts import site_key
from tasks.runtime.release_identity import input_digests, record_data_change
from tasks.runtime.run import Run
from tasks.runtime.staleness import check_made
from tasks.runtime.step import step
from tasks.runtime.store import (
    atomic_folder,
    link,
    read_array,
    read_json,
    read_tensors,
    write_array,
    write_json,
    write_tensors,
)
from tasks.transcription.clients import (
    HEADS,
    MODEL,
    STUDENT,
    groups,
    network_kind,
    number_of_clients,
    read_clients,
    read_manifest,
    read_model,
    read_student_start,
    section,
)
from tasks.transcription.release import check_run, open_account, release_terms, responses_of, stored_labels
from terrine.aggregation.votes import count_votes
from terrine.data import partition as partitions
from terrine.data.content_digest import digest_of_arrays
from terrine.data.dataset import Dataset
from terrine.data.partition import protected_groups
from terrine.determinism.randomness import numpy_generator
from terrine.device import resolve_device
from terrine.errors import ArtefactError, SettingError
from terrine.files import file_digest
from terrine.privacy.accounting.events import Event
from terrine.teachers.linear import LinearKind, LinearTeachers
from terrine.teachers.networks import Architecture
from terrine.teachers.records import Records, private_features

TEST_IMAGES = 2_000
"""Maximum number of test images for teacher accuracy, in batches of `TEST_BATCH`."""
TEST_BATCH = 500
ONE_TEACHER = "one teacher"
"""Value of `partition.kind` for a single teacher."""
NOTICE = "PRIVATE: models of private records and their accuracy. Do not publish."


@step("partition")
def deal_clients(run: Run) -> None:
    """Assign the records to clients, or all of them to one teacher.

    Checks the budget and a teacher's file before any training.
    """
    dataset = read_dataset(run.folders)
    settings = section(run.params)
    check_run(run, dataset.classes)
    if settings.teacher.file is not None:
        read_model(run, run.path(settings.teacher.file), dataset.classes)
    elif settings.teacher.architecture not in ("linear", *get_args(Architecture)):
        raise SettingError(
            f"transcription.teacher.architecture={settings.teacher.architecture} is unknown. Take one of linear, "
            f"{', '.join(get_args(Architecture))}."
        )
    if settings.federated:
        deal_records.fn(run)
        return
    assignment = np.zeros(dataset.records, dtype=np.int64)
    proof = partitions.check(assignment, 1, protected_groups(dataset, run.params.privacy.unit))
    with atomic_folder(run.folders.partition) as folder:
        write_array(folder / "assignment.npy", assignment)
        write_json(
            folder / "manifest.json",
            {**proof, "hash": partitions.partition_hash(assignment, site_key(run)), "kind": ONE_TEACHER},
        )


@step("labels")
def respond(run: Run) -> None:
    """Write the teachers' labels: those of the records, or with protect=labels the released randomised ones."""
    settings, dataset = section(run.params), read_dataset(run.folders)
    check_run(run, dataset.classes)
    labels = dataset.train_labels
    manifest: dict[str, Any] = {"notice": NOTICE, "protect": settings.protect, "release_id": None}
    if settings.protect == "labels":
        first: Any = slice(None)
        name: Any = first
        if run.params.data.one_label_a_name:
            # One answer per name: the majority of, say, thirty answers about one file would reveal its label.
            first, name = np.unique(dataset.record_names, return_index=True, return_inverse=True)[1:]
        else:
            _check_distinguishable(dataset)
        terms, source = release_terms(run, dataset.classes), responses_of(run, 0, 0)
        epsilon, event = settings.annotation.epsilon, terms["worst_case"]
        assert epsilon is not None

        def draw() -> tuple[dict[str, np.ndarray], Event]:
            return {"labels": source.respond(dataset.train_labels[first], epsilon, dataset.classes)[name]}, event

        own = digest_of_arrays("terrine labels 1", {"labels": (dataset.train_labels, "<i8")}, site_key(run))
        inputs = input_digests(run, labels=own)
        release = open_account(run).release(**terms, draw=draw, inputs=inputs)
        labels = release.arrays["labels"]
        record_data_change(run, "labels", release, inputs)
        if labels.shape != dataset.train_labels.shape:
            raise ArtefactError(
                f"The labels of {len(labels)} records were released, but the data now have {dataset.records}. Restore "
                "the data, or release again under a new data.edition, at additional cost."
            )
        manifest |= {"release_id": release.release_id, "kept": float((labels == dataset.train_labels).mean())}
    with atomic_folder(run.folders.labels) as folder:
        write_array(folder / "labels.npy", labels)
        write_json(folder / "manifest.json", manifest)


def _check_distinguishable(dataset: Dataset) -> None:
    """Raise SettingError if two records are equal except possibly for their labels."""
    names, images = dataset.record_names, dataset.train_images
    for number in np.flatnonzero(names[1:] == names[:-1]):
        if np.array_equal(images[number], images[number + 1]):
            raise SettingError(
                f"Records {number} and {number + 1} of the training data have the same name and image. With "
                "transcription.protect=labels they must differ in one of these. Remove or rename one of the files."
            )


@step("teach clients", retries=2)
def train_clients(run: Run, group: range) -> None:
    """Train a group of clients on their records, unless they are stored. A teacher from a file needs no training.

    A client with too few records gives a constant answer, so that neither the run's progress nor other clients depend
    on its number of records.
    """
    settings = section(run.params).teacher
    path = _work(run) / _group_name(group)
    if settings.file is not None or path.is_file():
        return
    dataset = read_dataset(run.folders)
    labels, assignment = read_array(run.folders.labels / "labels.npy"), read_assignment(run.folders)
    device = resolve_device(run.params.device)
    if settings.architecture == "linear":
        write_tensors(path, _linear_heads(run, dataset, labels, assignment, group, device))
        return
    kind = network_kind(run, dataset.classes)
    records = Records(dataset.train_images, labels, assignment, dataset.classes)
    # For clients with too few records, a head of zeros makes all classes equally likely.
    initial = kind.initial(run.params.seed).items()
    undecided = {name: value * 0 if name.startswith("head.") else value for name, value in initial}
    states = dict.fromkeys(group, undecided) | dict(kind.train(records, group, seed=run.params.seed, device=device))
    write_tensors(path, {f"{client}.{name}": value for client in group for name, value in states[client].items()})


@step("collect clients")
def collect_clients(run: Run) -> None:
    """Write all clients as one artefact with a digest and their accuracy on the test split."""
    settings, dataset = section(run.params).teacher, read_dataset(run.folders)
    manifest: dict[str, Any] = {
        "notice": NOTICE,
        "made_from": made_from(run),
        "source": "file" if settings.file is not None else "trained",
        "architecture": settings.architecture,
        "clients": number_of_clients(run),
        "classes": dataset.classes,
        "files": [],
    }
    with atomic_folder(run.folders.teachers) as folder:
        if settings.file is not None:
            path = run.path(settings.file)
            model, _ = read_model(run, path, dataset.classes)
            manifest["file_digest"] = file_digest(path)
            write_tensors(folder / MODEL, {name: value.numpy() for name, value in model.state_dict().items()})
        elif settings.architecture == "linear":
            parts = [read_tensors(_work(run) / _group_name(group)) for group in groups(run)]
            write_tensors(folder / HEADS, {n: np.concatenate([part[n] for part in parts]) for n in ("weight", "bias")})
        else:
            for group in groups(run):
                link(_work(run) / _group_name(group), folder / _group_name(group))
                manifest["files"].append({"file": _group_name(group), "first": group.start, "stop": group.stop})
        manifest["digest"] = digest(
            {"weights": _weights_digest(folder), "student": file_digest(run.folders.start / STUDENT)}, 64
        )
        write_json(folder / "manifest.json", manifest)
    manifest |= _accuracy(run, dataset)
    write_json(run.folders.teachers / "manifest.json", manifest)
    shutil.rmtree(_work(run), ignore_errors=True)


def _weights_digest(folder: Path) -> str:
    """Compute a digest of all clients' weights, independent of their grouping into files."""
    values = {
        name: hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        for path in sorted(folder.glob("*.safetensors"))
        for name, value in read_tensors(path).items()
    }
    return digest(values, 64)


def check_before_work(run: Run) -> None:
    """Check the budget, and remove a stored teacher if its file has changed, so that it is loaded again.

    Raises SettingError or BudgetError, as `check_run`.
    """
    check_run(run)
    file, manifest = section(run.params).teacher.file, run.folders.teachers / "manifest.json"
    if file is None or not (run.path(file).is_file() and manifest.is_file()):
        return
    if read_json(manifest).get("file_digest") != file_digest(run.path(file)):
        shutil.rmtree(run.folders.teachers)


def _group_name(group: range) -> str:
    return f"clients-{group.start:06d}-{group.stop - 1:06d}.safetensors"


def made_from(run: Run) -> str:
    """Compute the digest of everything that determines the clients."""
    return digest(
        {
            "dataset": run.folders.dataset_manifest()["fingerprint"],
            "partition": read_json(run.folders.partition / "manifest.json")["hash"],
            "labels": file_digest(run.folders.labels / "labels.npy"),
            "student": file_digest(run.folders.start / STUDENT),
            "teacher": section(run.params).teacher.model_dump(mode="json"),
            "clients": number_of_clients(run),
            "seed": run.params.seed,
        },
        64,
    )


def check_origin(run: Run) -> None:
    """Check that partition, labels and clients were made with the current settings, which the statement will state.

    With protect=labels clients answer without noise, so they must have been trained on the randomised labels.
    """
    folders, released = run.folders, stored_labels(run)
    dealt, learnt = (read_json(folder / "manifest.json") for folder in (folders.partition, folders.labels))
    expected = partition_settings(run) if section(run.params).federated else {"kind": ONE_TEACHER}
    check_made(
        run,
        partition=all(dealt.get(name) == value for name, value in expected.items()),
        labels=learnt["release_id"] == (None if released is None else released.release_id),
        teachers=read_manifest(run).get("made_from") == made_from(run),
    )


def _work(run: Run) -> Path:
    return run.folders.work / f"clients-{made_from(run)[:12]}"


def _linear_heads(
    run: Run, dataset: Dataset, labels: np.ndarray, assignment: np.ndarray, group: range, device: torch.device
) -> dict[str, np.ndarray]:
    """Train the heads of a group of clients, on features under the statistics of each client's records.

    Clients with too few records have a head of zeros.
    """
    kept = np.flatnonzero(np.isin(assignment, list(group)))
    features = private_features(
        read_student_start(run.folders),
        dataset.train_images[kept],
        assignment[kept],
        "current",
        most=TEST_BATCH,
        device=device,
        shuffle=run.params.seed,  # sorted files would give batches of one class
    )
    records = Records(features, labels[kept], assignment[kept], dataset.classes)
    kind = LinearKind(LinearTeachers(ridge=section(run.params).teacher.ridge, prior=1), by_teacher=True)
    nothing = {
        "weight": np.zeros((dataset.classes, features.rows.shape[1]), np.float32),
        "bias": np.zeros(dataset.classes, np.float32),
    }
    states = dict.fromkeys(group, nothing) | dict(kind.train(records, group, seed=run.params.seed, device=device))
    return {name: np.stack([states[client][name] for client in group]) for name in nothing}


def _accuracy(run: Run, dataset: Dataset) -> dict[str, float]:
    """Compute the accuracy of the clients and of their plurality vote on up to `TEST_IMAGES` test images."""
    order = numpy_generator(0, "evaluation order").permutation(len(dataset.test_labels))[:TEST_IMAGES]
    device, number = resolve_device(run.params.device), np.arange(len(order))
    votes = np.zeros((len(order), dataset.classes), dtype=np.int64)
    for group in groups(run):
        clients = read_clients(run, group)
        for part in np.array_split(number, max(1, round(len(order) / TEST_BATCH))):
            images = torch.from_numpy(np.ascontiguousarray(dataset.test_images[order[part]])).to(device)
            predicted = clients.probabilities(images).argmax(-1).cpu().numpy()
            votes[part] += count_votes(predicted.T, dataset.classes)
    labels = dataset.test_labels[order]
    return {
        "accuracy": int(votes[number, labels].sum()) / (len(order) * number_of_clients(run)),
        "plurality_accuracy": float((votes.argmax(1) == labels).mean()),
        "test_images": len(order),
    }
