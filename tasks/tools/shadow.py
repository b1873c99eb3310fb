"""A shadow run: the run's own stages on other records, in a folder of its own, with a ledger that is thrown away.

The images and the backbone are public and are the run's own; what depends on records is made anew. Records keep their
names, and a unit's teacher is a function of its own name: so whoever is in a shadow run sits with the teacher of the
run itself, whoever else is there. Nothing of it is released or charged to the run's ledger.
"""

from __future__ import annotations

from pathlib import Path

from tasks.config.values import digest
from tasks.pipeline.dataset import write_dataset
from tasks.runtime.run import Run
from tasks.runtime.store import link, read_json
from terrine.data.dataset import Dataset


def shadow_run(run: Run, records: Dataset, root: Path) -> Run:
    """Return a run under `root` whose dataset is laid down and whose public artefacts are those of `run`.

    `records` stand for the training part.
    """
    ledger = run.params.ledger.model_copy(
        update={"url": "sqlite:///ledger.db", "key": Path("key"), "store": Path("releases")}
    )
    shadow = Run(root, run.name, run.params.model_copy(update={"ledger": ledger}))
    # A fingerprint of its own, so that its features and teachers are never taken for those of the run.
    own = digest([records.record_names.tolist(), records.train_labels.tolist(), root.name], 32)
    manifest = read_json(run.folders.dataset / "manifest.json")
    write_dataset(shadow.folders, records, {**manifest, "fingerprint": f"shadow {own}"})
    for folder in (run.folders.images, run.folders.backbone, run.folders.start):
        if folder.is_dir():
            link(folder, shadow.root / folder.relative_to(run.root))
    for features in (run.root / "data" / "public" / "shared").glob("features-*.npy"):
        link(features, shadow.root / features.relative_to(run.root))
    return shadow
