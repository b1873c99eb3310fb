"""Fine-tuned teachers: only the last layers move, and the backbone that all share does not."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from terrine.determinism.randomness import torch_generator
from terrine.errors import SettingError
from terrine.heads import initial_head
from terrine.models.architecture import build_backbone
from terrine.models.statistics import batch_statistics
from terrine.queries import Queries
from terrine.teachers.network_training import load_state, parts
from terrine.teachers.networks import FinetuneKind, FinetuneTeachers
from terrine.teachers.records import Records

CLASSES = 3


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
    kind.names = []
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
        for index in torch.tensor_split(order, parts(len(images), 8)):
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


def test_a_backbone_without_weights_is_refused():
    scattering = build_backbone("scattering", channels=1, size=8, seed=0, projection=10)
    with pytest.raises(SettingError, match="'scattering' has no weights to fine-tune"):
        finetune(scattering)


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
