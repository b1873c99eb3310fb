"""Algorithm 1 of Dodwadmath and Stich (2022) once more, line by line, one teacher at a time, in plain NumPy."""

import numpy as np

from terrine.determinism.randomness import numpy_generator
from terrine.teachers.averaging.averaged import AveragedTeachers
from terrine.teachers.records import Records


def averaged(**settings) -> AveragedTeachers:
    """Averaged teachers without noise, with steps that heads on features want."""
    return AveragedTeachers(**({"mode": "paper", "learning_rate": 1.0, "batch": 32} | settings))


def sorted_records(parties: int, per_party: int, features: int, classes: int, seed: int = 0) -> Records:
    """Records whose labels are sorted over the parties, so that each has one or two classes."""
    generator = np.random.default_rng(seed)
    count = parties * per_party
    labels = np.sort(generator.integers(0, classes, count))
    centres = generator.normal(size=(classes, features)) * 2
    inputs = (centres[labels] + generator.normal(size=(count, features))).astype(np.float32)
    return Records(inputs, labels, np.arange(count) // per_party, classes)


def plain_gradient(weights, inputs, labels, classes):
    """Gradient of mean softmax cross-entropy on records of unit length; weights as `LinearLearner` lays them out."""
    features = inputs.shape[1]
    matrix, bias = weights[: classes * features].reshape(classes, features), weights[classes * features :]
    gradient_matrix, gradient_bias = np.zeros((classes, features)), np.zeros(classes)
    for record, label in zip(inputs, labels, strict=True):
        record = record / np.sqrt((record * record).sum())
        scores = matrix @ record + bias
        probabilities = np.exp(scores - scores.max())
        probabilities /= probabilities.sum()
        for k in range(classes):
            error = (probabilities[k] - (1.0 if k == label else 0.0)) / len(inputs)
            gradient_matrix[k] += error * record
            gradient_bias[k] += error
    return np.concatenate([gradient_matrix.ravel(), gradient_bias])


def plain_batches(rows, settings, seed, number, teacher):
    """The mini-batches that the module promises: permutations of a teacher's records one after the other, cut."""
    generator = numpy_generator(seed, "averaged batches", number, teacher)
    drawn = []
    while len(drawn) < settings.steps * settings.batch:
        drawn.extend(generator.permutation(rows).tolist())
    return [drawn[t * settings.batch : (t + 1) * settings.batch] for t in range(settings.steps)]


def plain_ttac(records, parties, settings, rounds, seed, *, correct=True):
    """(θ, c, [c_i], [θ_i of the last round]) after `rounds` rounds of Algorithm 1."""
    classes, features = records.classes, records.inputs.shape[1]
    size = classes * (features + 1)
    theta, c = np.zeros(size), np.zeros(size)
    own = [np.zeros(size) for _ in range(parties)]
    step = settings.learning_rate
    local = []
    for number in range(rounds):
        local, moved, changed = [], np.zeros(size), np.zeros(size)
        for i in range(parties):
            rows = np.flatnonzero(records.assignment == i)
            theta_i = theta.copy()
            for batch in plain_batches(rows, settings, seed, number, i):
                inputs = records.inputs[batch].astype(np.float64)
                gradient = plain_gradient(theta_i, inputs, records.labels[batch], classes)
                theta_i = theta_i - step * (gradient - own[i] + c)
            new = own[i] - c + (theta - theta_i) / (settings.steps * step) if correct else own[i]
            moved += (theta_i - theta) / parties
            changed += (new - own[i]) / parties
            own[i] = new
            local.append(theta_i)
        step = step * settings.step_decay
        theta = theta + settings.server_rate * moved
        c = c + changed
    return theta, c, own, local
