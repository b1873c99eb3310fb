"""Teachers with averaging and correction (TTAC): Algorithm 1 of Dodwadmath and Stich (2022).

In every round each teacher i starts from the average θ, takes T steps of gradient descent with the correction c - c_i,

    θ_i ← θ_i - η_f (∇f_i(θ_i) - c_i + c)                    (eq. 2)
    c_i⁺ ← c_i - c + (θ - θ_i) / (T η_f)                     (eq. 3)

and the means of these changes update θ and c (eq. 4 and 5). Different data pull parties apart; the correction replaces
a party's own direction c_i by the common one, c.

    averaging: global   one θ for all teachers, the paper's algorithm. Every teacher is then a function of every record,
                        so noise on votes does not bound the effect of a record. `terrine.teachers.averaging.private`
                        makes the averages private; given them, a record moves one vote per query again.
    averaging: blocks   one θ for each group of g teachers, which cast one vote. A record affects only one group, so the
        vote accounting holds.
    averaging: none     Algorithm 2, conventional training: a group of one.
    correction: none    c and c_i stay zero: federated averaging.

The teachers that vote are the θ_i of the last round, so R rounds use R - 1 averages.

A round consists of two functions. `local_round` trains some teachers, given the average and their own records, so a
cluster task can run it. `server_step` updates θ and c from the means over all. `average_teachers` loops over both in
one process. Mini-batches derive from (seed, round, teacher), so they do not depend on the grouping.

A party with fewer records than the learner needs stays at θ_i = θ: its Δθ_i is zero and, by eq. 3, its c_i⁺ is c_i - c,
as if its own direction had been zero. Such a party counts in the means, since the number of parties is public and the
number of trained ones is not. A zero update is within every clipping norm S. So replacing one unit, even one by which a
party gets or no longer has enough records, changes the sum of clipped updates by at most 2S, the charged sensitivity
(`terrine.teachers.averaging.private`). Eq. 3 holds for all parties, so Δc remains a function of Δθ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from terrine.determinism.parallel import side_by_side
from terrine.determinism.randomness import numpy_generator
from terrine.errors import InputError
from terrine.npy import Rows
from terrine.teachers.linear import stacks
from terrine.teachers.records import Records, teacher_rows

if TYPE_CHECKING:
    import torch

    from terrine.teachers.averaging.averaged import AveragedTeachers
    from terrine.teachers.averaging.learners import Learner

_COPIES = 6  # number of copies of a teacher's weights in memory during training


@dataclass(frozen=True)
class Average:
    """State from which a round starts: θ and c, float64 [P]."""

    value: np.ndarray
    control: np.ndarray

    @classmethod
    def start(cls, learner: Learner) -> Average:
        """Return the public start: the learner's initial weights and a zero direction."""
        value = learner.initial().double().cpu().numpy()
        return cls(value, np.zeros_like(value))


def mean_over_groups(groups: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean, float64 [P], of groups of vectors [teachers, P]; equal to the last bit for every grouping."""
    total, count = np.zeros(groups[0].shape[1]), 0
    for group in groups:
        for vector in group:
            total += vector
        count += len(group)
    return total / count


def derived_control(start: Average, update: np.ndarray, settings: AveragedTeachers, number: int) -> np.ndarray:
    """Return Δc, [P], as a function of the mean update, [P].

    By eq. 3, c_i⁺ - c_i = -c - (θ_i - θ) / (T η_f) for every teacher; Δc is the mean of both sides. If the update was
    released, Δc therefore costs no further privacy.
    """
    if settings.correction == "none":
        return np.zeros_like(start.control)
    return -start.control - update / (settings.steps * settings.rate(number))


def server_step(start: Average, update: np.ndarray, control_update: np.ndarray, settings: AveragedTeachers) -> Average:
    """Return the next average from the mean updates Δθ and Δc, [P]; line 16 of Algorithm 1."""
    return Average(start.value + settings.server_rate * update, start.control + control_update)


@dataclass(frozen=True)
class LocalResult:
    """Results of some teachers in a round: Δθ_i and c_i⁺, each [teachers, P]. Private."""

    update: np.ndarray
    own: np.ndarray


def local_round(
    learner: Learner,
    start: Average,
    own: np.ndarray,
    records: Records,
    teachers: Sequence[int] | np.ndarray,
    settings: AveragedTeachers,
    number: int,
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> LocalResult:
    """Train teachers in round `number` (from 0); lines 5 to 12 of Algorithm 1.

    A teacher's result depends on its start, its c_i, its own records, the settings, the seed, its number and the round.
    A teacher with too few records does not move (see the module docstring).

    Args:
        learner: Model that every teacher trains.
        start: Weights θ and correction c, [P], or [teachers, P] with one row per teacher.
        own: Control variates c_i of these teachers, [teachers, P].
        records: Private records of all teachers, with their assignment.
        teachers: Numbers of the teachers to train.
        settings: Settings of the rounds.
        number: Number of the round, from 0.
        seed: The run's seed, for the batches.
        device: Device of the computation.

    Returns:
        The results in the order of `teachers`.

    Raises:
        InputError: The inputs are not of the learner's kind, or c_i has the wrong shape.
    """
    import torch

    records.checked_inputs(learner.inputs, by_teacher=learner.by_teacher)
    if own.shape != (len(teachers), learner.length):
        raise InputError(
            f"Control variates of shape {list(own.shape)} do not fit {len(teachers)} teachers with {learner.length} "
            "weights each."
        )
    device = torch.device(device)
    trainable = set(records.trainable(teachers, learner.min_records))
    moving = [position for position, teacher in enumerate(teachers) if teacher in trainable]
    parts = teacher_rows(records.assignment, [teachers[position] for position in moving])
    rows = dict(zip(moving, parts, strict=True))
    update = np.zeros(own.shape, own.dtype)
    after = own.copy()
    if settings.correction == "control_variates":
        after -= start.control.astype(own.dtype)

    def learn(positions: list[int]) -> None:
        batches = [
            _batches(rows[position], settings, numpy_generator(seed, "averaged batches", number, teachers[position]))
            for position in positions
        ]
        place = (slice(None),) if start.value.ndim == 1 else (positions,)
        theta, control = (
            torch.as_tensor(values[place]).to(learner.initial()).to(device).expand(len(positions), -1)
            for values in (start.value, start.control)
        )
        before = torch.as_tensor(own[positions]).to(theta)
        correction = control - before
        values = theta.clone()  # updated in place, since allocating memory for a network's weights takes time
        for index in np.stack(batches, 1):
            inputs = torch.from_numpy(np.ascontiguousarray(records.values[index])).to(device)
            labels = torch.from_numpy(records.labels[index].astype(np.int64, copy=False)).to(device)
            values -= learner.gradients(values, inputs, labels).add_(correction).mul_(settings.rate(number))
        moved = values - theta
        if settings.correction == "control_variates":
            before = before - control - moved / (settings.steps * settings.rate(number))
        update[positions], after[positions] = moved.cpu().numpy(), before.cpu().numpy()

    sizes = {position: settings.batch or len(own) for position, own in rows.items()}
    width = int(np.prod(records.values.shape[1:]))
    stacked = stacks(sizes, lambda size: 4 * (_COPIES * learner.length + 2 * size * width), device)
    for _ in side_by_side(learn, stacked, device):
        pass
    return LocalResult(update, after)


def _batches(rows: np.ndarray, settings: AveragedTeachers, generator: np.random.Generator) -> np.ndarray:
    """Return record numbers [steps, batch] cut from successive permutations of the teacher's records.

    All teachers have batches of the same size, even those with fewer records than that, so that all fit one problem.
    """
    if settings.batch is None:
        return np.tile(rows, (settings.steps, 1))
    wanted = settings.steps * settings.batch
    passes = [generator.permutation(rows) for _ in range(-(-wanted // len(rows)))]
    return np.concatenate(passes)[:wanted].reshape(settings.steps, settings.batch)


Combine = Callable[[Average, list[LocalResult], np.ndarray, int], tuple[np.ndarray, np.ndarray]]
"""Function (start, results of all teachers, their previous c_i, round) -> mean Δθ and mean Δc."""


def exact_means(
    start: Average, results: list[LocalResult], before: np.ndarray, number: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean Δθ and mean Δc as in the paper, without noise; lines 11 and 15 of Algorithm 1."""
    ends = np.cumsum([len(part.own) for part in results])[:-1]
    changes = [part.own - old for part, old in zip(results, np.split(before, ends), strict=True)]
    return mean_over_groups([part.update for part in results]), mean_over_groups(changes)


def average_teachers(
    learner: Learner,
    records: Records,
    teachers: Sequence[int] | np.ndarray,
    settings: AveragedTeachers,
    *,
    rounds: int,
    seed: int,
    combine: Combine = exact_means,
) -> tuple[Average, np.ndarray]:
    """Return θ and c after `rounds` rounds of all `teachers`, and their c_i [teachers, P], in one process.

    Args:
        learner: Model that every teacher trains.
        records: Private records of all teachers, with their assignment.
        teachers: Numbers of the teachers to train.
        settings: Settings of the rounds.
        rounds: Number of rounds.
        seed: The run's seed, for the batches.
        combine: Function that computes the means; exact means give no privacy.
    """
    average = Average.start(learner)
    own = np.zeros((len(teachers), learner.length), learner.initial().numpy().dtype)
    for number in range(rounds):
        local = local_round(learner, average, own, records, teachers, settings, number, seed=seed)
        update, control_update = combine(average, [local], own, number)
        average, own = server_step(average, update, control_update, settings), local.own
    return average, own


def unit_rows(features: Rows) -> np.ndarray:
    """Return features [..., D] scaled to unit length, float32; a zero vector stays zero.

    This bounds the gradient of every record, and makes step sizes comparable across backbones. The rule uses no figure
    about the data, so it costs no privacy.
    """
    values = np.asarray(features, np.float32)
    norms = np.linalg.norm(values, axis=-1, keepdims=True)
    return values / np.where(norms > 0, norms, 1)
