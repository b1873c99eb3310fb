"""Networks are those that a plain loop of torch's own optimiser trains, whoever else is trained."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from terrine.determinism.randomness import torch_generator
from terrine.errors import ArtefactError, InputError
from terrine.queries import Queries
from terrine.teachers.network_training import Classifier, epoch_batches, parts, vote_with_networks
from terrine.teachers.networks import ScratchKind, ScratchTeachers
from terrine.teachers.records import Records

SETTINGS = ScratchTeachers(epochs=3, batch=8, learning_rate=0.01, weight_decay=0.02)
CLASSES = 3


def scratch(architecture: str = "small_cnn", settings: ScratchTeachers = SETTINGS) -> ScratchKind:
    return ScratchKind(settings.model_copy(update={"architecture": architecture}), 1, 8, CLASSES)


def classifier(architecture: str = "small_cnn") -> Classifier:
    """What every teacher of a run with the seed 7 starts from."""
    return scratch(architecture).classifier(7)


def train(records, teachers=range(5)):
    return dict(scratch().train(records, teachers, seed=7))


def plainly_trained(records: Records, teacher: int, architecture: str = "small_cnn") -> nn.Module:
    """One teacher by autograd, torch.optim.Adam and batch normalisation in training mode, one batch after the other."""
    own = records.assignment == teacher
    images = torch.from_numpy(records.inputs[own]).float() / 255
    labels = torch.from_numpy(records.labels[own])
    network = classifier(architecture).train()
    weights = [value for value in network.parameters() if value.ndim > 1]
    others = [value for value in network.parameters() if value.ndim == 1]
    optimiser = torch.optim.Adam(
        [{"params": weights, "weight_decay": SETTINGS.weight_decay}, {"params": others}], lr=SETTINGS.learning_rate
    )
    generator = torch_generator(7, "teacher shuffle", teacher)
    for _ in range(SETTINGS.epochs):
        order = torch.randperm(len(images), generator=generator)
        for index in torch.tensor_split(order, parts(len(images), SETTINGS.batch)):
            optimiser.zero_grad()
            F.cross_entropy(network(images[index]), labels[index]).backward()
            optimiser.step()
    return network


def plain_votes(network: nn.Module, queries: Queries) -> np.ndarray:
    """Votes of one teacher, batch by batch, with its layers in training mode, where they use the batch's statistics."""
    votes = np.empty(len(queries.inputs), np.int64)
    network.train()
    with torch.no_grad():
        for batch in queries.batches:
            scores = network(torch.from_numpy(queries.inputs[batch]).float() / 255)
            for place, row in zip(batch, scores, strict=True):
                votes[place] = max(range(CLASSES), key=lambda label, row=row: float(row[label]))
    return votes


@pytest.mark.parametrize("architecture", ["small_cnn", "cryptonet"])
def test_teachers_of_a_group_equal_teachers_of_a_plain_loop_and_vote_the_same(records, queries, architecture):
    states = dict(scratch(architecture).train(records, [0, 3], seed=7))
    votes = vote_with_networks(states.values(), classifier(architecture), queries, "current", device="cpu")
    for column, teacher in enumerate((0, 3)):
        network = plainly_trained(records, teacher, architecture)
        for name, value in network.named_parameters():
            np.testing.assert_allclose(states[teacher][name], value.detach(), atol=2e-4, err_msg=name)
        assert (votes[:, column] == plain_votes(network, queries)).mean() > 0.995


def test_training_learns(records):
    longer = ScratchTeachers(epochs=12, batch=8, learning_rate=0.003)
    (_, state) = next(scratch(settings=longer).train(records, [0], seed=7))
    own = records.assignment == 0
    asked = Queries(records.inputs[own], [np.arange(own.sum())])
    votes = vote_with_networks([state], classifier(), asked, "current", device="cpu")
    assert (votes[:, 0] == records.labels[own]).mean() > 0.9


def test_a_teacher_is_the_same_to_the_bit_whatever_its_group_and_the_number_of_threads(records, queries):
    before = torch.get_num_threads()
    results = []
    try:
        for threads, size in ((1, 1), (1, 5), (2, 2)):
            torch.set_num_threads(threads)
            states = {}
            for first in range(0, 5, size):
                states |= train(records, range(first, min(first + size, 5)))
            votes = vote_with_networks(states.values(), classifier(), queries, "current", device="cpu")
            arrays = [state[name] for state in states.values() for name in state]
            results.append(b"".join(array.tobytes() for array in [*arrays, votes]))
    finally:
        torch.set_num_threads(before)
    assert len(set(results)) == 1


def test_voting_leaves_the_network_as_it_was_and_does_not_depend_on_the_order_of_batches(records, queries):
    states = train(records, [1, 2])
    frame = classifier()
    before = {name: value.clone() for name, value in frame.state_dict().items()}
    first = vote_with_networks(states.values(), frame, queries, "current", device="cpu")
    backwards = Queries(queries.inputs, queries.batches[::-1])
    second = vote_with_networks(iter(states.values()), frame, backwards, "current", device="cpu")
    assert first.dtype == np.uint8
    assert np.array_equal(first, second)
    assert all(torch.equal(value, before[name]) for name, value in frame.state_dict().items())


@pytest.mark.parametrize(("records", "batch", "sizes"), [(3, 2, [3]), (7, 3, [3, 2, 2]), (9, None, [9]), (1, 8, [1])])
def test_epochs_are_cut_into_near_equal_batches_and_none_of_one_record(records, batch, sizes):
    batches = epoch_batches(records, batch, torch.Generator().manual_seed(0))
    assert [len(each) for each in batches] == sizes
    assert sorted(torch.cat(batches).tolist()) == list(range(records))


def test_a_teacher_with_one_record_is_passed_over_where_there_is_batch_norm_and_trained_where_there_is_none(records):
    assignment = np.where(np.arange(90) == 4, 1, 0)
    lonely = Records(records.inputs, records.labels, assignment, CLASSES)
    assert not train(lonely, [1])
    ((teacher, state),) = scratch("cryptonet").train(lonely, [1], seed=0)
    assert teacher == 1
    assert all(np.isfinite(value).all() for value in state.values())


def test_what_is_no_image_is_refused(feature_records, feature_queries):
    with pytest.raises(InputError, match=r"learn from images.*linear or estimator teachers"):
        train(feature_records)
    with pytest.raises(InputError, match="Networks vote on images"):
        vote_with_networks([], classifier(), feature_queries, "current", device="cpu")


def test_batches_must_hold_every_query_once(queries):
    wrong = Queries(queries.inputs, queries.batches[:2])
    with pytest.raises(InputError, match="do not hold each of 60 queries once"):
        vote_with_networks([], classifier(), wrong, "current", device="cpu")


def test_a_state_of_another_network_is_refused(records, queries):
    states = [dict(train(records, [1])[1]) for _ in range(2)]
    states[1]["head.weight"] = states[1]["head.weight"][:, :-1]
    with pytest.raises(ArtefactError, match=r"'head\.weight' does not fit"):
        vote_with_networks(states, classifier(), queries, "current", device="cpu")
    del states[1]["head.weight"]
    with pytest.raises(ArtefactError, match="Teachers hold different arrays"):
        vote_with_networks(states, classifier(), queries, "current", device="cpu")
