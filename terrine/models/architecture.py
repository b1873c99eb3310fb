"""Architectures of backbones: settings that are declared without torch, and the function that builds a network.

A new architecture is one file, listed in `ARCHITECTURES`: a subclass of `Architecture` with its settings and a function
that makes the network. `build` returns a `terrine.models.backbone.Backbone`. Every architecture of timm can also be
built under its own name (`resnet26`, `efficientnet_b0`, ...).

Not every stock architecture works on small images: a DenseNet's stem reduces them to nothing, a transformer's windows
do not divide them. So `options` chooses a stem that works, and enlarges images as little as needed. The choice is part
of the backbone's description, so loading a stored backbone needs no search.
"""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from terrine.determinism.randomness import derive_seed
from terrine.errors import SettingError
from terrine.geometry import Size, in_json, sides, size_of
from terrine.settings import Kinds, Settings, SiteLocal, Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import torch

    from terrine.models.backbone import Backbone
    from terrine.npy import Rows
    from terrine.queries import Queries

SMALLEST, LARGEST = 8, 320

_initialising = threading.RLock()
"""Initial weights come from torch's global generator: one thread at a time."""

PROJECTION_BATCHES = 16
"""Batches on which a projection is learned."""
REFERENCE_BATCHES = 8
"""Batches from which a backbone without weights gets its original statistics; sources take turns in them."""

Built = tuple[Any, int]
"""A torch network and its number of features."""


class Architecture(Settings):
    """The feature extractor that teachers and student share."""

    of_images: ClassVar[bool] = True
    """True for images, False for a table's rows."""
    has_weights: ClassVar[bool] = False
    """Whether the architecture has weights to train and to fine-tune."""
    learns_projection: ClassVar[bool] = False
    """Whether the projection is learned on public images (`terrine.models.lda_projection`)."""
    reference: ClassVar[Literal["queries", "pretraining"] | None] = None
    """Images to which the parts without weights are fitted, if there are such parts."""

    kind: str

    @property
    def pretrained_here(self) -> bool:
        """Whether this project pretrains the backbone on synthetic images."""
        return self.has_weights

    def side(self, size: Size) -> Size | None:
        """Return the size at which images of size `size` enter the network, or None if building it determines that."""
        return size

    def build(self, channels: int, size: Size, seed: int) -> Backbone:
        """Return the backbone for images [B, channels, *size] with its initial weights, on the CPU.

        Raises SettingError for an architecture that does not take such images.
        """
        return build_backbone(self.kind, channels=channels, size=size, seed=seed, **self.options(channels, size))

    def fit(self, queries: Queries, *, seed: int = 0, device: torch.device | str = "cpu") -> Backbone:
        """Build the backbone, and fit it to public images or load its weights.

        Args:
            queries: Public uint8 images [queries, C, H, W]; with private ones there would be no guarantee.
            seed: Seed of the initial weights and of the fit.
            device: Device of the fit and of the returned backbone.

        Raises:
            SettingError: The architecture does not take such images, or needs weights.
            InputError: A batch is too small, or the file of weights does not match the architecture.
        """
        weights = getattr(self, "weights", None)
        if weights is None and self.pretrained_here:
            raise SettingError(
                f"A backbone of kind={self.kind} needs weights: set weights to a file, or pretrain it on synthetic "
                "images (`terrine.pretraining.simclr.pretrain`, or the pipeline's stage `pretrain`)."
            )
        channels, size = queries.images.shape[1], size_of(queries.images.shape)
        backbone = self.build(channels, size, seed)
        if weights is not None:
            from terrine.models.weights import take_weights

            take_weights(backbone, weights)
        self.adapt(backbone, queries.images, queries.batches, seed=seed, device=device)
        backbone.origin = {**self.identity(), "seed": seed, "images": queries.describe()}
        return backbone.to(device)

    def adapt(
        self, backbone: Backbone, images: Rows, batches: Sequence[np.ndarray], *, seed: int, device: torch.device | str
    ) -> None:
        """Fit the parts without weights, if any, to public images in batches of one source each."""
        if self.reference is not None:
            from terrine.models.statistics import fit_reference

            fit_reference(backbone, images, batches[:REFERENCE_BATCHES], device)

    def options(self, channels: int, size: Size) -> dict[str, Any]:
        """Return the keyword arguments of `network`, which the backbone's description stores: JSON values."""
        return {}

    @staticmethod
    def network(kind: str, channels: int, size: Size, seed: int) -> Built:
        """Return the network of this kind, initialised from torch's global generator, and its number of features.

        Options are keyword arguments. Raises SettingError for impossible options.
        """
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """Return the settings that the backbone depends on, as JSON values; weights are identified by their digest."""
        return self.model_dump(mode="json", exclude={"weights"}, exclude_none=True)

    def check(self, run: Any) -> None:
        """Raise ValueError for data of the wrong kind, or without the images that the architecture learns from."""
        if self.of_images != run.data.of_images:
            raise ValueError(
                f"backbone.kind={self.kind} does not go with data.name={run.data.name}: a table needs its "
                f"columns as a backbone. Set backbone.kind={'scattering' if run.data.of_images else 'columns'}"
            )
        if run.pretraining.images is None and (self.pretrained_here or self.reference == "pretraining"):
            raise ValueError(
                f"pretraining.images is missing: backbone.kind={self.kind} is pretrained on, or fitted to, synthetic "
                "images. Set pretraining.images.count and pretraining.images.sources"
            )


class Trained(Architecture):
    """Base class of architectures that have weights."""

    weights: Annotated[Path | None, SiteLocal(unless=(None, "timm", "initial"))] = None
    """Pretrained weights: a file (safetensors or a torch state dict), `timm` for those published by timm, or `initial`
    for random weights, as in classic PATE. The statement names the source. null: pretrain in this run."""

    has_weights: ClassVar[bool] = True

    @property
    def pretrained_here(self) -> bool:
        return self.weights is None


class Projected(Architecture):
    """Base class of fixed transforms with many coefficients; a learned projection ignores the kind's `deformations`."""

    projection: Annotated[int, Unit("features")] = Field(1000, ge=1)
    """Number of features after projection."""

    def adapt(
        self, backbone: Backbone, images: Rows, batches: Sequence[np.ndarray], *, seed: int, device: torch.device | str
    ) -> None:
        if self.learns_projection:
            from terrine.models.lda_projection import learn_projection

            own, deformations = batches[:PROJECTION_BATCHES], getattr(self, "deformations", None)
            learn_projection(backbone, images, own, seed=seed, device=device, deformations=deformations)
        super().adapt(backbone, images, batches, seed=seed, device=device)


class Stemmed(Settings):
    """Settings of ResNets and DenseNets."""

    stem: Literal["standard", "small"] = "standard"
    """First layers: the standard 7x7 stem, or a 3x3 stem that keeps the resolution of small images. DenseNet121 uses
    the small stem if images are too small for the standard one."""


class Enlarged(Settings):
    """Settings of timm's architectures."""

    enlarge: Annotated[int | None, Unit("pixels")] = Field(None, ge=8, le=1024)
    """Side to which images are resized before the network. null: the smallest that the architecture allows."""

    def side(self, size: Size) -> Size | None:
        """Return the side at which images enter the network."""
        return self.enlarge


class Columns(Architecture):
    """The columns of a table are its features; there is nothing to learn."""

    of_images: ClassVar[bool] = False

    kind: Literal["columns"] = "columns"


ARCHITECTURES = Kinds(
    "backbone",
    Architecture,
    *(
        "terrine.models." + n
        for n in ("small_networks", "resnet", "timm", "concatenated", "scattering", "patches", "levels")
    ),
    default="scattering",
)


def known_to_timm(name: str) -> bool:
    """Return whether timm has an architecture of this name."""
    from terrine import vision  # slow to import, and few runs need it

    return vision.timm.is_model(name)


def build_backbone(kind: str, *, channels: int, size: Size, seed: int, **options: Any) -> Backbone:
    """Return the backbone `kind` for images [B, channels, *size], on the CPU, with initial weights from `seed`.

    The weights depend only on (kind, channels, size, options, seed); torch's global generator is restored. `columns` is
    the backbone of a table of `channels` columns, with `size` 1, and takes rows instead of images.

    Raises:
        SettingError: an unknown kind or option, or an impossible size.
    """
    import torch

    from terrine.models.backbone import Backbone, ColumnsBackbone

    if kind == "columns":
        return ColumnsBackbone(channels)
    if kind not in ARCHITECTURES.names():
        if not known_to_timm(kind):
            raise SettingError(
                f"backbone: '{kind}' is unknown. Known: {', '.join(ARCHITECTURES.names())}, and every architecture of "
                "timm."
            )
        return build_backbone("timm", channels=channels, size=size, seed=seed, architecture=kind, **options)
    if not SMALLEST <= min(sides(size)) <= max(sides(size)) <= LARGEST:
        raise SettingError(
            f"backbone: images of side {in_json(size)}. Backbones take sides from {SMALLEST} to {LARGEST}."
        )
    if channels not in (1, 3):
        raise SettingError(f"backbone: images of {channels} channels. Backbones take 1 (grey) or 3 (colour).")
    network = ARCHITECTURES.of(kind).network
    known = inspect.getfullargspec(network).kwonlyargs
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise SettingError(
            f"backbone: {kind} has no option '{unknown[0]}'. It has {', '.join(known) if known else 'none'}."
        )
    with _initialising, torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, f"backbone {kind}"))
        built, features = network(kind, channels, size, seed, **options)
    return Backbone(built, features, {"kind": kind, "channels": channels, "size": in_json(size), "options": options})
