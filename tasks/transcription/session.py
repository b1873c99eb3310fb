"""Stage `transcribe`: query the teachers and write the release.

A `Session` combines the loop of `terrine.transcription`, the ledger reservation, and a private work folder. The worst
case is charged before the first batch. Each annotation is stored before training uses it, and the release is committed
once, at the end. An interrupted session resumes its reservation, reads the stored annotations and computes the rest.

Clients run in this process or, with `per_task`, in Prefect tasks. Tasks read the batch from the work folder and write
their sums there; these are private until this process adds noise.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tasks.config.values import digest
from tasks.pipeline.student import describe_reading
from tasks.reports.statement_page import write_statement_and_page
from tasks.runtime.progress import progress_reporter
from tasks.runtime.release_identity import Inputs, input_digests, record_data_change
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import (
    atomic_folder,
    read_array,
    read_json,
    read_tensors,
    write_array,
    write_json,
    write_tensors,
)
from tasks.runtime.task import check_task
from tasks.transcription.clients import (
    groups,
    number_of_clients,
    read_clients,
    read_manifest,
    read_start,
    section,
    write_generator,
)
from tasks.transcription.release import (
    check_run,
    noise_of,
    open_account,
    release_terms,
    responses_of,
    statement_of,
    stored_labels,
)
from tasks.transcription.teach import check_origin
from terrine.deployment.manifest import MANIFEST, seal
from terrine.deployment.model import BACKBONE, HEAD, REFERENCE
from terrine.deployment.reference import affordable, choose_reference
from terrine.device import resolve_device
from terrine.errors import ArtefactError
from terrine.heads import head_from_module
from terrine.models.backbone_files import save_backbone
from terrine.pretraining.checkpoint import read_checkpoint, write_checkpoint
from terrine.privacy.ledger.ledger import StoredRelease
from terrine.privacy.ledger.release_protocol import Reservation
from terrine.privacy.statement import released_per_class
from terrine.synthetic.contact_sheet import contact_sheet
from terrine.transcription.annotation import DataAnnotation, answers, counts
from terrine.transcription.clients import NetworkClients
from terrine.transcription.generator import random_vectors
from terrine.transcription.loop import Discriminator, Loop, TranscribedStudent

CHECKPOINT_SECONDS = 60.0
QUERIES, STATE = "queries.safetensors", "state.safetensors"
SHEET_IMAGES = 100


class Session:
    """State of a running transcription, in one process from `begin` to `finish`; see the module docstring."""

    def __init__(self, run: Run) -> None:
        self.run, self.settings = run, section(run.params)
        self.manifest = read_manifest(run)
        self.classes: int = self.manifest["classes"]
        self.clients = number_of_clients(run)
        self.groups = groups(run)
        self.device = resolve_device(run.params.device)
        self.fans_out = self.settings.per_task is not None
        check_run(run, self.classes)
        check_origin(run)
        self.terms = release_terms(run, self.classes)
        self.folder = run.folders.work / f"transcription-{self.terms['release_id'][:16]}"
        self.release: StoredRelease | None = None
        self.labels: StoredRelease | None = None  # set only with protect=labels
        self._reservation: Reservation | None = None
        self._saved = time.monotonic()
        self._trained_digest = hashlib.sha256()  # of the annotations that the loop was trained on
        self._report: Callable[[float, str], None] | None = None
        self.loop = self._new_loop()

    @property
    def unfinished(self) -> bool:
        """True until the loop has used all annotations."""
        return self.loop.iteration < self.settings.iterations

    @property
    def waiting(self) -> bool:
        """True if this iteration's annotation must still be computed."""
        return self.release is None and not self._annotation_path(self.loop.iteration).is_file()

    def open(self) -> None:
        """Charge the worst case or find the stored release, then restore the last checkpoint."""
        self.labels = stored_labels(self.run)
        if self.labels is None:
            self._reservation = open_account(self.run).reserve(**self.terms, inputs=self._inputs())
            self.release = self._reservation.release
        self.folder.mkdir(parents=True, exist_ok=True)
        self._restore()

    def _inputs(self) -> Inputs:
        """Return the digests of the inputs, which the ledger stores."""
        return input_digests(self.run, teachers=self.manifest["digest"])

    def record_data_change(self) -> None:
        """Record, in the private zone, whether the stored release was made from other teachers."""
        if self.release is not None:
            record_data_change(self.run, "annotations", self.release, self._inputs())

    def abandon(self) -> None:
        """Close the reservation; the charge and stored annotations remain."""
        if self._reservation is not None:
            self._reservation.close()

    def annotation(self) -> Tensor:
        """Return this iteration's annotation from the release or disk; otherwise draw and store it."""
        number = self.loop.iteration
        path = self._annotation_path(number)
        if self.release is None and not path.is_file():
            posed = self.loop.pose()
            images, probabilities = posed.images, posed.probabilities
            parts = [part_path(self.folder, number, group) for group in self.groups]
            contributions = [
                read_array(part)
                if self.fans_out
                else compute_contributions(self.run, group, number, images, probabilities)
                for part, group in zip(parts, self.groups, strict=True)
            ]
            annotation = annotate(self.run, np.sum(contributions, axis=0), probabilities, self.clients, number)
            write_array(path, annotation.cpu().numpy())
            for part in parts:
                part.unlink(missing_ok=True)
        return torch.from_numpy(self._stored(number))

    def learn(self) -> None:
        """Train on this iteration's annotation, and write a checkpoint at intervals."""
        annotation = self.annotation()
        self.loop.learn(annotation)
        self._trained_digest.update(annotation.numpy().tobytes())
        done, iterations = self.loop.iteration, self.settings.iterations
        if self._report is None:
            self._report = progress_reporter(self.run.name, "transcription")
        # Losses are not shown: if the annotation is lost and drawn again, they would be a second release.
        self._report(done / iterations, f"iteration {done} of {iterations}")
        if time.monotonic() - self._saved >= CHECKPOINT_SECONDS:
            description = {"iteration": done, "trained": self._trained_digest.hexdigest(), "loop": self._loop_digest()}
            write_checkpoint(self.folder / STATE, self.loop.tensors(), description)
            self._saved = time.monotonic()

    def settle(self) -> StoredRelease:
        """Commit all annotations at their cost and return the release."""
        if self.labels is not None:
            return self.labels
        if self.release is None:
            assert self._reservation is not None
            self.release = self._reservation.commit({"annotations": self.annotations()}, self.terms["worst_case"])
        return self.release

    def write_queries(self) -> None:
        """Store the query images and the student's probabilities for clients in other processes."""
        posed = self.loop.pose()
        write_tensors(
            self.folder / QUERIES,
            {
                "iteration": np.array([posed.iteration]),
                "images": posed.images.cpu().numpy(),
                "probabilities": posed.probabilities.cpu().numpy(),
            },
        )

    def annotations(self) -> np.ndarray:
        """Return all annotations, float32 [T, b, classes]."""
        if self.release is not None:
            return self.release.arrays["annotations"]
        return np.stack([read_array(self._annotation_path(number)) for number in range(self.settings.iterations)])

    def _stored(self, number: int) -> np.ndarray:
        """Load an annotation, float32 [b, classes], from the release or from disk."""
        if self.release is not None:
            return np.array(self.release.arrays["annotations"][number])
        return read_array(self._annotation_path(number))

    def _annotation_path(self, number: int) -> Path:
        return self.folder / f"annotation-{number:06d}.npy"

    def _restore(self) -> None:
        """Restore the checkpoint if it belongs to the current annotations and loop settings.

        Settings that are not part of the release identity may have changed the loop. Another session with the same
        identity may also have finished first: its annotations are then the release, and a model trained on this
        session's annotations, which are not paid for, must not influence anything published.
        """
        path = self.folder / STATE
        if not path.is_file():
            return
        tensors, description = read_checkpoint(path)
        done, trained = int(description["iteration"]), hashlib.sha256()
        for number in range(done):
            if self.release is None and not self._annotation_path(number).is_file():
                break
            trained.update(self._stored(number).tobytes())
        if (trained.hexdigest(), self._loop_digest()) != (description.get("trained"), description.get("loop")):
            path.unlink()
            return
        self.loop.restore(tensors, done)
        self._trained_digest = trained

    def _loop_digest(self) -> str:
        identity = self.settings.model_dump(mode="json", include={"iterations", "batch", "student", "generator"})
        return digest(identity, 64)

    def _new_loop(self) -> Loop:
        backbone, generator = read_start(self.run.folders)
        discriminator: Discriminator | None = None
        if self.settings.generator.discriminator == "teacher":
            clients = read_clients(self.run, range(1))
            assert isinstance(clients, NetworkClients)
            discriminator = clients.discriminate
        seed = self.run.params.seed
        student = TranscribedStudent(backbone, self.classes, seed)
        return Loop(student, generator, self.settings, seed=seed, device=self.device, discriminator=discriminator)


def compute_contributions(run: Run, group: range, iteration: int, images: Tensor, probabilities: Tensor) -> np.ndarray:
    """Sum the contributions of a group of clients, [b, classes]: gradients, still without noise, or counts of answers.

    Answers by randomised response are already noisy; `annotate` adds noise to the sum of gradients.
    """
    settings = section(run.params)
    teacher = read_clients(run, group).probabilities(images)
    if settings.protect != "answers":
        return DataAnnotation(settings.annotation).total(teacher, probabilities)
    source = responses_of(run, iteration, group.start)
    responses = answers(teacher, probabilities, settings.annotation, source)
    return counts(responses, probabilities.shape[1]).cpu().numpy()


def annotate(run: Run, total: np.ndarray, probabilities: Tensor, clients: int, iteration: int) -> Tensor:
    """Compute the annotation [b, classes] from the sum over all clients; draws the noise."""
    settings = section(run.params)
    if settings.protect == "answers":
        return torch.from_numpy(total / clients).float()
    return DataAnnotation(settings.annotation).annotate(total, probabilities, clients, noise_of(run, iteration))


def part_path(folder: Path, number: int, group: range) -> Path:
    """Return the path of a group's sum in an iteration."""
    return folder / f"contributions-{number:06d}-{group.start:06d}-{group.stop - 1:06d}.npy"


@step("reserve")
def begin(session: Session) -> None:
    """Reserve the worst case before the first batch."""
    session.open()


@step("pose")
def pose(session: Session) -> None:
    """Store the next batch of queries for the clients."""
    session.write_queries()


@step("contribute", retries=2)
def contribute(run: Run, folder: Path, number: int, group: range) -> None:
    """Compute a group's sum in an iteration, unless it exists."""
    path = part_path(folder, number, group)
    if path.is_file():
        return
    queries = read_tensors(folder / QUERIES)
    if int(queries["iteration"][0]) != number:
        raise ArtefactError(f"{folder} does not have the batch of iteration {number}: two sessions share this folder.")
    device = resolve_device(run.params.device)
    images, probabilities = (torch.from_numpy(queries[name]).to(device) for name in ("images", "probabilities"))
    write_array(path, compute_contributions(run, group, number, images, probabilities))


@step("learn")
def learn(session: Session) -> None:
    """Add noise to this iteration's sums and train on the annotation."""
    session.learn()


@step("transcribe")
def transcribe_in_process(session: Session) -> None:
    """Run all remaining iterations with clients in this process."""
    while session.unfinished:
        session.learn()


@step("settle")
def finish(session: Session) -> None:
    """Commit the release and write all published files."""
    run = session.run
    release = session.settle()
    check_task(release, run.folders.dataset_manifest()["class_names"])
    session.record_data_change()
    annotations = session.annotations()
    session.loop.finish()
    with atomic_folder(run.folders.annotations) as folder:
        write_array(folder / "annotations.npy", annotations)
        write_json(folder / "manifest.json", {"release_id": release.release_id, "shape": list(annotations.shape)})
    _write_generator(session)
    _write_student(session, release)
    answered = released_per_class(annotations.argmax(-1).ravel(), session.classes)
    write_statement_and_page(
        run,
        statement_of(run, release, session.classes, answered),
        read_json(run.folders.student / MANIFEST)["class_names"],
    )
    shutil.rmtree(session.folder, ignore_errors=True)


def _write_generator(session: Session) -> None:
    generator = session.loop.generator
    with atomic_folder(session.run.folders.generator) as folder:
        write_generator(folder / "generator.safetensors", generator)
        write_json(folder / "manifest.json", generator.describe())
        sheet = contact_sheet(_images(session, SHEET_IMAGES), scale=2)
        Image.fromarray(sheet).save(folder / "sheet.png", format="png")


def _write_student(session: Session, release: StoredRelease) -> None:
    """Write the student for serving, with reference images from the generator."""
    run, student = session.run, session.loop.student
    data, names = run.params.data, run.folders.dataset_manifest()["class_names"]
    images = _images(session, session.settings.batch)
    with torch.no_grad():
        scores = student(torch.from_numpy(images).to(session.device))[1]
    chosen = choose_reference(scores.softmax(1).cpu().numpy(), affordable(data.size, data.channels))
    with atomic_folder(run.folders.student) as folder:
        write_tensors(folder / HEAD, head_from_module(student.head).to_arrays())
        save_backbone(student.backbone, folder / BACKBONE)
        write_tensors(folder / REFERENCE, {"images": images[chosen]})
        description: dict[str, Any] = {
            "kind": "transcribed",
            "release": release.release_id,
            "statistics": "current",
            "class_names": names,
            "size": data.size,
            "channels": data.channels,
            "reference": f"{len(chosen)} images of the generator",
            **describe_reading(data),
            "training": {"iterations": session.settings.iterations, "batch": session.settings.batch},
        }
        write_json(folder / MANIFEST, seal(folder, description))


@torch.no_grad()
def _images(session: Session, count: int) -> np.ndarray:
    """Generate fixed images, uint8 [max(count, 2), C, H, W], with the trained generator."""
    generator = session.loop.generator
    vectors = random_vectors(max(2, count), generator.latent, session.run.params.seed, -1)
    return (generator(vectors.to(session.device)) * 255).round().to(torch.uint8).cpu().numpy()
