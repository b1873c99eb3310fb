"""NT-Xent, the contrastive loss of SimCLR (Chen et al. 2020, equation 1)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from terrine.errors import InputError


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Return the mean normalised, temperature-scaled cross-entropy of 2 B views, a scalar.

    first, second: [B, D] projections of two views of the same B images, in the same order. Each view is asked to
    recognise its partner among the 2 B - 1 other views by cosine similarity over `temperature`. Computed in float32.

    Raises InputError when the shapes differ or there are fewer than two images, and so no negatives.
    """
    if first.shape != second.shape or first.dim() != 2:
        raise InputError(f"nt_xent: views of shape {tuple(first.shape)} and {tuple(second.shape)}; give two of [B, D].")
    if len(first) < 2:
        raise InputError(f"nt_xent: {len(first)} image(s) leave no negatives. Give at least 2.")
    count = len(first)
    views = F.normalize(torch.cat([first, second]).float(), dim=1)
    with torch.autocast(views.device.type, enabled=False):
        similarity = views @ views.T / temperature
    similarity = similarity.masked_fill(torch.eye(2 * count, dtype=torch.bool, device=views.device), -torch.inf)
    partner = torch.arange(2 * count, device=views.device).roll(count)
    return F.cross_entropy(similarity, partner)
