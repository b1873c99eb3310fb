"""Label-sensitive annotation: the teacher's class, told by randomised response among the student's top-k classes.

    y = one-hot of R(r; k, ε) if the teacher's class r is among the student's k most probable classes,
        one-hot of one of these k, uniformly, otherwise                  (Liu et al. 2026, eq. 5; appendix D)

Equation 5 prints R over all c classes. Then an answer outside the top-k would prove that r is inside it, and no ε would
bound the ratio; appendix D (line 33) answers among the top-k, which is ε-differentially private, and is what is done.

Formal guarantee: one annotated sample is a `RandomisedResponseEvent` towards the teacher's class. The teacher is a
function of all of a client's records, so one record may change its class for every sample: n samples cost the
composition of n events (docs/dpsd.md), not one ε as the paper's Theorem 2 is read. Clients hold disjoint records, so
more of them cost nothing.
"""

import numpy as np
import torch
from torch import Tensor

from terrine.privacy.randomised_response import ResponseSource
from terrine.transcription.annotation import mask
from terrine.transcription.settings import Annotation


def answers(teacher: Tensor, student: Tensor, settings: Annotation, source: ResponseSource) -> Tensor:
    """Return every client's answers, int64 [clients, B]: a release.

    teacher: the clients' probabilities [clients, B, classes]; student: [B, classes].
    """
    assert settings.epsilon is not None
    chosen = mask(student, settings.top_k)
    among = teacher.argmax(-1)[..., None] == chosen
    place = torch.where(among.any(-1), among.int().argmax(-1), -1).cpu().numpy()
    told = source.respond(place.reshape(-1).astype(np.int64), settings.epsilon, settings.top_k).reshape(place.shape)
    indices = torch.from_numpy(told).to(chosen.device)
    return chosen.expand(len(teacher), -1, -1).gather(-1, indices[..., None])[..., 0]


def counts(answers: Tensor, classes: int) -> Tensor:
    """Return how many clients answered each class, int64 [B, classes]: their mean is the annotation."""
    return torch.nn.functional.one_hot(answers, classes).sum(0)
