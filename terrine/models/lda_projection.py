"""A linear projection of a fixed backbone that is invariant to small deformations, learned on synthetic images.

A digit moved by a pixel, turned or stretched a little is the same digit, but its features under a fixed transform
change. Let two deformed copies of each public image have features z and z'. With

    W = E (z - z')(z - z')ᵀ / 2     the variation within an image,
    T = E z zᵀ                      the total variation (features of a batch have mean 0),

the projection keeps the `dimension` directions v of largest vᵀ T v / vᵀ (W + γ tr(W)/D I) v, scaled to equal variation
within an image: Fisher's discriminant with every image its own class, the linear relative of contrastive learning, in
closed form. A teacher with a hundred records then learns from a few hundred features in which similar records are
close, instead of a thousand in which they are not. Only synthetic images enter, and no private data.
"""

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from terrine.determinism.parallel import side_by_side
from terrine.determinism.randomness import torch_generator
from terrine.errors import InputError, SettingError
from terrine.models.backbone import Backbone, as_float
from terrine.models.deformations import Deformations, deform
from terrine.models.projected import ProjectedNetwork
from terrine.models.statistics import batch_statistics
from terrine.npy import Rows

_LARGEST = 2000
"""Maximum dimension of the eigenproblem, whose cost grows with its cube. With more features, directions are chosen in
the span of this number of images (Nyström; Williams and Seeger 2001), which contains nearly all variation."""


@torch.no_grad()
def invariant_projection(
    features: Callable[[Tensor], Tensor],
    images: Rows,
    batches: Sequence[np.ndarray],
    dimension: int,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    deformations: Deformations | None = None,
    shrinkage: float = 0.3,
) -> Tensor:
    """Return the projection, float32 [D, dimension] on the CPU, for a backbone's features.

    On a CPU the result does not depend on the number of threads.

    Args:
        features: Maps float images [B, C, H, W] on `device` to features [B, D] standardised over the batch; called from
            threads.
        images: Public uint8 images [N, C, H, W].
        batches: Index arrays, each of images from one source.
        dimension: Number of directions to keep.
        seed: Seed of the deformations and of random directions.
        device: Device of the computation.
        deformations: Largest amounts of the random deformations; None for the defaults.
        shrinkage: γ in the formula above.

    Raises:
        SettingError: an impossible `dimension` or `shrinkage`.
        InputError: There are too few images.
    """
    deformations = deformations or Deformations()
    device = torch.device(device)
    if not 0 < shrinkage < math.inf:
        raise SettingError(f"projection: shrinkage is {shrinkage}, and must be positive.")
    if not batches or min(len(batch) for batch in batches) < 2:
        raise InputError("The projection is learned from batches of at least two images, and needs at least one batch.")

    def loaded(rows: np.ndarray) -> Tensor:
        return as_float(torch.from_numpy(images[np.asarray(rows)]).to(device))

    scattered = features(loaded(batches[0][:2])).shape[1]
    kept = min(scattered, _LARGEST)
    if not 1 <= dimension <= kept:
        raise SettingError(
            f"projection: {dimension} directions were asked for; there are {scattered} features, so 1 to {kept}."
        )

    basis = None
    if kept < scattered:
        enough = 1 + int(np.searchsorted(np.cumsum([len(batch) for batch in batches]), kept))
        seen = side_by_side(lambda batch: features(loaded(batch)), batches[:enough], device)
        spanning = [rows.cpu() for rows in seen]
        missing = max(0, kept - sum(map(len, spanning)))
        spanning.append(torch.randn(missing, scattered, generator=torch_generator(seed, "directions")))
        rows = torch.cat(spanning)[:kept]
        del spanning
        (basis,) = side_by_side(lambda _: torch.linalg.qr(rows.T).Q, [0])
        basis = basis.to(device)
        del rows

    def moments(number: int) -> tuple[Tensor, Tensor]:
        batch = loaded(batches[number])
        generator = torch_generator(seed, "deformations", number)
        pair = [features(deform(batch, deformations, generator)) for _ in range(2)]
        first, second = pair if basis is None else [z @ basis for z in pair]
        difference = (first - second) * math.sqrt(0.5)
        return difference.T @ difference, (first.T @ first + second.T @ second) / 2

    within = torch.zeros(kept, kept, dtype=torch.float64)
    total = torch.zeros_like(within)
    for own_within, own_total in side_by_side(moments, range(len(batches)), device):
        within += own_within.cpu()
        total += own_total.cpu()
    count = sum(len(batch) for batch in batches)
    penalty = shrinkage * within.trace() / count / scattered
    within.div_(count).diagonal().add_(penalty)
    (projection,) = side_by_side(lambda _: _discriminant(within, total.div_(count), dimension), [0])
    projection = projection.float()
    return projection if basis is None else basis.cpu() @ projection


def _discriminant(within: Tensor, total: Tensor, dimension: int) -> Tensor:
    """Return the generalised eigenvectors [D, dimension] of (total, within), largest first, signs fixed.

    Both matrices are overwritten: thousands of features need much memory.
    """
    factor = torch.linalg.cholesky(within, out=within)
    half = torch.linalg.solve_triangular(factor, total, upper=False, out=total)
    whitened = torch.linalg.solve_triangular(factor, half.T, upper=False)
    _, vectors = torch.linalg.eigh(torch.add(whitened, whitened.T, out=total).div_(2))
    vectors = vectors[:, -dimension:].flip(1)
    # An eigenvector's sign is arbitrary; the bytes of a backbone must not depend on a library's choice.
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return torch.linalg.solve_triangular(factor.T, vectors * largest.sign(), upper=True)


def learn_projection(
    backbone: Backbone,
    images: Rows,
    batches: Sequence[np.ndarray],
    *,
    seed: int,
    device: torch.device | str = "cpu",
    deformations: Deformations | None = None,
) -> None:
    """Replace the random projection of a backbone by `invariant_projection` of public `images`, in place.

    Arguments and errors are the same; a backbone without a projection raises SettingError.
    """
    network = backbone.network
    if not isinstance(network, ProjectedNetwork) or network.projection is None:
        raise SettingError("projection: only a backbone of scattering or patches with a projection can learn one.")
    whole = copy.deepcopy(network).to(device)
    whole.projection = None

    def features(batch: Tensor) -> Tensor:
        with batch_statistics(whole, "current"):
            return whole(batch)

    projection = invariant_projection(
        features,
        images,
        batches,
        backbone.feature_dim,
        seed=seed,
        device=device,
        deformations=deformations,
    )
    network.projection.copy_(projection)
