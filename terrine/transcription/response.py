"""Label-sensitive annotation: the teacher's class, told by randomised response among the student's top-k classes.

    y = one-hot of R(r; k, ε) if the teacher's class r is among the student's k most probable classes,
        one-hot of one of these k, uniformly, otherwise                  (Liu et al. 2026, eq. 5; appendix D)

Equation 5 prints R over all c classes. Then an answer outside the top-k would prove that r is inside it, and no ε would
bound the ratio; appendix D (line 33) answers among the top-k, which is ε-differentially private, and is what is done.

Formal guarantee: one annotated sample is `event`, towards the teacher's class. The teacher is a function of all of a
client's records, so one record may change its class for every sample: n samples cost the composition of n events
(docs/dpsd.md), not one ε as the paper's Theorem 2 is read. Clients hold disjoint records, so more of them cost nothing.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from terrine.errors import SettingError
from terrine.privacy.accounting.events import RandomisedResponseEvent
from terrine.privacy.randomised_response import ResponseSource, keep_probability


@dataclass(frozen=True)
class LabelAnnotation:
    """epsilon: ε of one answer. top_k: k, classes among which it is given."""

    epsilon: float
    top_k: int = 3

    def __post_init__(self) -> None:
        keep_probability(self.epsilon, self.top_k)
        if self.epsilon == 0:
            raise SettingError("annotation.epsilon is 0: every answer would be as likely as any other.")

    @property
    def event(self) -> RandomisedResponseEvent:
        """What one annotated sample costs."""
        return RandomisedResponseEvent(self.epsilon, self.top_k)

    def mask(self, student: Tensor) -> Tensor:
        """Return the k classes that the student finds most probable, int64 [B, k], ascending."""
        if self.top_k > student.shape[-1]:
            raise SettingError(
                f"annotation.top_k is {self.top_k}, but there are {student.shape[-1]} classes. Give at most as many."
            )
        return student.topk(self.top_k, dim=-1).indices.sort(dim=-1).values

    def answers(self, teacher: Tensor, student: Tensor, source: ResponseSource) -> Tensor:
        """Return every client's answers, int64 [clients, B]: a release.

        teacher: the clients' probabilities [clients, B, classes]; student: [B, classes].
        """
        chosen = self.mask(student)
        among = teacher.argmax(-1)[..., None] == chosen
        place = torch.where(among.any(-1), among.int().argmax(-1), -1).cpu().numpy()
        told = source.respond(place.reshape(-1).astype(np.int64), self.epsilon, self.top_k).reshape(place.shape)
        indices = torch.from_numpy(told).to(chosen.device)
        return chosen.expand(len(teacher), -1, -1).gather(-1, indices[..., None])[..., 0]

    def annotate(self, answers: Tensor, classes: int) -> Tensor:
        """Return the annotation, the mean of the clients' one-hot answers: float32 [B, classes]."""
        return torch.nn.functional.one_hot(answers, classes).float().mean(0)
