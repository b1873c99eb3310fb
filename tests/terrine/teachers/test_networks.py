"""Teachers that are networks: trained from scratch or fine-tuned, and how they vote."""

from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from terrine.determinism.randomness import torch_generator
from terrine.errors import ArtefactError, InputError
from terrine.heads import initial_head
from terrine.models.architecture import build_backbone
from terrine.models.statistics import batch_statistics
from terrine.queries import Queries
from terrine.teachers.network_training import Classifier, count_batches, epoch_batches, load_state, vote_with_networks
from terrine.teachers.networks import Architecture, FinetuneKind, FinetuneTeachers, ScratchKind, ScratchTeachers
from terrine.teachers.records import Records

SETTINGS = ScratchTeachers(epochs=3, batch=8, learning_rate=0.01, weight_decay=0.02)
CLASSES = 3


def scratch(architecture: str = "small_cnn", settings: ScratchTeachers = SETTINGS) -> ScratchKind:
    return ScratchKind(settings.model_copy(update={"architecture": architecture}), 1, 8, CLASSES)


def classifier(architecture: str = "small_cnn") -> Classifier:
    """Initial state of every teacher of a run with seed 7."""
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
        for index in torch.tensor_split(order, count_batches(len(images), SETTINGS.batch)):
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
    queried = Queries(records.inputs[own], [np.arange(own.sum())])
    votes = vote_with_networks([state], classifier(), queried, "current", device="cpu")
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
    with pytest.raises(InputError, match="do not contain each of 60 queries once"):
        vote_with_networks([], classifier(), wrong, "current", device="cpu")


def test_a_state_of_another_network_is_refused(records, queries):
    states = [dict(train(records, [1])[1]) for _ in range(2)]
    states[1]["head.weight"] = states[1]["head.weight"][:, :-1]
    with pytest.raises(ArtefactError, match=r"'head\.weight' does not fit"):
        vote_with_networks(states, classifier(), queries, "current", device="cpu")
    del states[1]["head.weight"]
    with pytest.raises(ArtefactError, match="Teachers have different arrays"):
        vote_with_networks(states, classifier(), queries, "current", device="cpu")


@pytest.fixture(scope="module")
def backbone():
    return build_backbone("small_cnn", channels=1, size=8, seed=3)


def finetune(backbone, trainable=1.0, **settings):
    defaults = {"epochs": 3, "batch": 8, "learning_rate": 0.01}
    return FinetuneKind(FinetuneTeachers(trainable=trainable, **(defaults | settings)), backbone, CLASSES)


def test_only_the_last_layers_and_the_head_are_part_of_the_state_and_the_backbone_is_untouched(backbone, records):
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    kind = finetune(backbone, 86.0)
    state = dict(kind.train(records, [1], seed=0))[1]
    assert set(state) == {
        *(f"network.{name}" for name in ("9.weight", "9.bias", "12.weight", "12.bias") if name in kind.names),
        *(f"network.{name}" for name in kind.names),
        "head.weight",
        "head.bias",
    }
    assert 86 <= kind.share < 100
    moved = [not np.array_equal(state[f"network.{name}"], before[f"network.{name}"]) for name in kind.names]
    assert all(moved)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


@pytest.mark.parametrize("statistics", ["current", "original"])
def test_a_teacher_that_trains_no_layer_is_a_head_on_frozen_features(backbone, records, statistics):
    kind = finetune(backbone, 0.5, statistics=statistics)
    kind.names, kind.state_keys = [], ["head.weight", "head.bias"]
    states = dict(kind.train(records, range(5), seed=2))
    assert set(states[0]) == {"head.weight", "head.bias"}
    own = records.assignment == 4
    images, labels = torch.from_numpy(records.inputs[own]).float() / 255, torch.from_numpy(records.labels[own])
    start = initial_head(128, CLASSES, 2)
    head = torch.nn.Linear(128, CLASSES)
    head.load_state_dict({"weight": torch.from_numpy(start.weight), "bias": torch.from_numpy(start.bias)})
    optimiser = torch.optim.Adam(head.parameters(), lr=0.01)
    generator = torch_generator(2, "teacher shuffle", 4)
    for _ in range(3):
        order = torch.randperm(len(images), generator=generator)
        for index in torch.tensor_split(order, count_batches(len(images), 8)):
            with torch.no_grad(), batch_statistics(backbone, statistics):
                features = backbone.network(images[index])
            optimiser.zero_grad()
            F.cross_entropy(head(features), labels[index]).backward()
            optimiser.step()
    np.testing.assert_allclose(states[4]["head.weight"], head.weight.detach(), atol=2e-4)


def test_teachers_share_the_start_or_have_heads_of_their_own(backbone, records):
    for initialisation, equal in (("shared", True), ("own", False)):
        kind = finetune(backbone, epochs=1, batch=None, learning_rate=1e-12, initialisation=initialisation)
        states = dict(kind.train(records, range(2), seed=0))
        assert np.allclose(states[0]["head.weight"], states[1]["head.weight"], atol=1e-9) == equal


def test_votes_of_a_group_are_votes_of_its_teachers_one_by_one(backbone, records, queries):
    kind = finetune(backbone, 100.0)
    states = dict(kind.train(records, range(3), seed=0))
    alone = [kind.vote([dict(kind.train(records, [teacher], seed=0))[teacher]], queries) for teacher in range(3)]
    assert np.array_equal(kind.vote(states.values(), queries), np.concatenate(alone, axis=1))


def test_attention_that_keeps_what_it_computed_from_its_weights_is_trained_and_votes_with_the_weights_at_hand():
    """TinyViT keeps its position biases in evaluation mode; a second teacher must not vote with those of the first."""
    backbone = build_backbone("tiny_vit_5m_224", channels=1, size=32, seed=0)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (8, 1, 32, 32)).astype(np.uint8)
    data = Records(images, np.arange(8) % CLASSES, np.arange(8) % 2, CLASSES)
    kind = finetune(backbone, 100.0, epochs=1, batch=None)
    states = [state for _, state in kind.train(data, [0, 1], seed=0)]
    biases = [name for name in states[0] if name.endswith("attention_biases")]
    for name in biases:
        states[1][name] = states[1][name] + 3 * generator.normal(size=states[1][name].shape).astype(np.float32)
    queries = Queries(images, [np.arange(8)])
    frame = kind.classifier(0)
    with torch.no_grad(), batch_statistics(frame, "current"):
        frame(torch.from_numpy(images))
        for state in states:
            load_state(frame, state)
            fresh = kind.classifier(0)
            load_state(fresh, state)
            assert torch.equal(frame(torch.from_numpy(images)), fresh(torch.from_numpy(images)))
    assert biases
    assert kind.vote(states, queries).shape == (8, 2)


def from_scratch(architecture="small_cnn", **settings):
    defaults = {"epochs": 2, "batch": 8}
    return ScratchKind(ScratchTeachers(architecture=architecture, **(defaults | settings)), 1, 8, CLASSES)


def start_of(kind, records, **settings):
    """States after one step so small that they are the start."""
    return dict(kind(epochs=1, batch=None, learning_rate=1e-12, **settings).train(records, range(3), seed=4))


@pytest.mark.parametrize("architecture", get_args(Architecture))
def test_every_architecture_trains_and_votes_with_both_statistics(records, queries, architecture):
    few = Queries(queries.inputs[:8], [np.arange(8)])
    for statistics in ("current", "original"):
        kind = from_scratch(architecture, epochs=1, batch=None, statistics=statistics)
        ((teacher, state),) = kind.train(records, [3], seed=0)
        votes = kind.vote([state], few)
        assert teacher == 3
        assert votes.shape == (8, 1)
        assert votes.max() < CLASSES
        recorded = any("running" in name for name in state)
        assert recorded == (statistics == "original" and architecture not in ("cryptonet", "pate_cnn"))


def test_a_shared_start_is_one_for_all_teachers_and_an_own_start_is_each_its_own(records):
    shared, own = start_of(from_scratch, records), start_of(from_scratch, records, initialisation="own")
    for states, equal in ((shared, True), (own, False)):
        for name in ("network.0.weight", "head.weight"):
            assert np.allclose(states[0][name], states[1][name], atol=1e-9) == equal
    again = dict(
        from_scratch(epochs=1, batch=None, learning_rate=1e-12, initialisation="own").train(records, [2], seed=4)
    )
    assert all(np.array_equal(again[2][name], own[2][name]) for name in again[2])


def test_original_statistics_are_those_of_the_teachers_own_records_under_its_final_weights(records):
    kind = from_scratch(statistics="original", batch=8)
    state = dict(kind.train(records, [0], seed=0))[0]
    classifier = kind.classifier(0)
    load_state(classifier, state)
    own = torch.from_numpy(records.inputs[records.assignment == 0]).float() / 255
    with torch.no_grad():
        maps = [classifier.network[0](batch) for batch in torch.tensor_split(own, 3)]
    mean = sum(batch.mean(dim=(0, 2, 3)) for batch in maps) / 3
    variance = sum(batch.transpose(0, 1).flatten(1).var(dim=1) for batch in maps) / 3
    np.testing.assert_allclose(state["network.1.running_mean"], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state["network.1.running_var"], variance, rtol=1e-4)


def test_under_original_statistics_a_vote_does_not_depend_on_the_batch(records, queries):
    kind = from_scratch(statistics="original")
    states = [state for _, state in kind.train(records, [0, 1], seed=0)]
    alone = type(queries)(queries.inputs, [np.array([number]) for number in range(60)])
    assert np.array_equal(kind.vote(states, queries), kind.vote(states, alone))
