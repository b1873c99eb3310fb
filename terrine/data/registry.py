"""Every dataset by its name.

    >>> dataset = load("digits", root=Path("data"))
    >>> dataset.train_images.shape
    (1435, 1, 28, 28)

A source is one file in this package with a function `load` that returns a `Dataset`; it is added here. It is private,
with a budget, unless `terrine.data.public` knows its name as a public benchmark's.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from terrine.data import digits, folder, medmnist_sets, npz, torchvision_sets
from terrine.data.dataset import Dataset
from terrine.data.image_files import Progress
from terrine.data.images import resize, to_channels
from terrine.data.pool import Pool, take_pool
from terrine.data.public import PUBLIC_BENCHMARKS
from terrine.errors import SettingError


def names() -> tuple[str, ...]:
    """Return the names that `load` knows."""
    return (*PUBLIC_BENCHMARKS, "npz", "folder", "table")


def load(
    name: str,
    *,
    root: Path,
    path: Path | None = None,
    size: int | None = None,
    channels: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    download: bool = True,
    target: str | None = None,
    id_column: str | None = None,
    group: str | None = None,
    party: str | None = None,
    public_fraction: float = 0.2,
    pool: Pool | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Return the dataset `name`, checked, with images of `size` × `size` pixels and `channels` channels.

    `root` is where benchmark files lie or are downloaded to (unless `download` is false); `path` is the user's file
    or folder for `npz`, `folder` and `table`. `size` and `channels` None leave images as they are (digits and folders
    become 28 × 28). `test_fraction` and `seed` split data that come without a test split. `progress` is called with
    (done, all) while image files are read.

    `target`, `id_column`, `group`, `party` and `public_fraction` are those of `terrine.data.table.load`. A table has no
    size and no channels, and its public rows are not part of the dataset: `terrine.data.table.public_rows` gives them.
    `pool` sets images aside as public (`terrine.data.pool`), before anything else is done with them.

    Raises SettingError for an unknown name or an impossible size, InputError for data that cannot be used.
    """
    if size is not None and size < 1:
        raise SettingError(f"data.size is {size}. Use a number of pixels, or null to leave sizes as they are.")
    if channels not in (None, 1, 3):
        raise SettingError(f"data.channels is {channels}. Use 1 (grey), 3 (colour) or null (as the images are).")
    if name == "table":
        if pool is not None:
            raise SettingError("data.pool is for images. What is public of a table is set by data.public_fraction.")
        if target is None:
            raise SettingError("data.name is table, but data.target is not set. Name the column to be predicted.")
        from terrine.data import table  # and with it pandas, which images do without

        rows = table.load(
            _required(path, name),
            target=target,
            id_column=id_column,
            group=group,
            party=party,
            public_fraction=public_fraction,
            test_fraction=test_fraction,
            seed=seed,
        )
        dataset = rows.to_dataset()
        dataset.validate()
        return dataset
    dataset = _load(name, root, path, size, channels, test_fraction, seed, download, pool, progress)
    dataset = _fitted(dataset, size, channels)
    if pool is not None:
        dataset = take_pool(dataset, pool, seed=seed)
    dataset.validate()
    return dataset


def _load(
    name: str,
    root: Path,
    path: Path | None,
    size: int | None,
    channels: int | None,
    test_fraction: float,
    seed: int,
    download: bool,
    pool: Pool | None,
    progress: Progress | None,
) -> Dataset:
    validation_apart = pool is not None and pool.source == "validation"
    if name == "digits":
        return digits.load(size=size, test_fraction=test_fraction, seed=seed)
    if name in torchvision_sets.CLASSES:
        return torchvision_sets.load(name, root=root, download=download)
    if name in medmnist_sets.NAMES:
        return medmnist_sets.load(name, root=root, size=size, download=download, validation_apart=validation_apart)
    if name == "npz":
        return npz.load(
            _required(path, name), test_fraction=test_fraction, seed=seed, validation_apart=validation_apart
        )
    if name == "folder":
        return folder.load(
            _required(path, name),
            size=size,
            channels=channels,
            test_fraction=test_fraction,
            seed=seed,
            progress=progress,
        )
    raise SettingError(f"data.name: there is no dataset '{name}'. Known are {', '.join(names())}.")


def _required(path: Path | None, name: str) -> Path:
    if path is None:
        raise SettingError(f"data.name is {name}, but data.path is not set. Point it at your file or folder.")
    return path


def _fitted(dataset: Dataset, size: int | None, channels: int | None) -> Dataset:
    """Return `dataset` with its images in the size and channels asked for."""

    def fitted(images: np.ndarray) -> np.ndarray:
        images = images if size is None else resize(images, size)
        return images if channels is None else to_channels(images, channels)

    pool = dataset.pool_images
    return replace(
        dataset,
        train_images=fitted(dataset.train_images),
        test_images=fitted(dataset.test_images),
        pool_images=None if pool is None else fitted(pool),
    )
