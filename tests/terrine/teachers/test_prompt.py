"""Prompt teachers: the paper's equations, many at once as one by one, and never a look at another's records."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from terrine.determinism.randomness import numpy_generator, torch_generator
from terrine.errors import ArtefactError
from terrine.heads import initial_head
from terrine.models.architecture import build_backbone
from terrine.models.statistics import batch_statistics
from terrine.queries import Queries
from terrine.teachers.network_training import epoch_batches
from terrine.teachers.prompt import PromptKind, PromptTeachers
from terrine.teachers.records import Records

CLASSES, SIZE = 3, 14
QUICK = {"epochs": 2, "batch": 4, "hidden": 5}


@pytest.fixture(scope="module")
def backbone():
    return build_backbone("small_cnn", channels=1, size=SIZE, seed=3)


@pytest.fixture(scope="module")
def records():
    """Records of five teachers; 4, 7, 9, 5 and 8 of them, so that steps and batches differ."""
    generator = numpy_generator(5, "records")
    assignment = np.repeat(np.arange(5), [4, 7, 9, 5, 8])
    labels = generator.integers(0, CLASSES, len(assignment))
    images = generator.integers(0, 120, (len(assignment), 1, 20, 20)) + 40 * labels[:, None, None, None]
    order = generator.permutation(len(assignment))
    return Records(images.astype(np.uint8)[order], labels[order], assignment[order], CLASSES)


def teachers(backbone, statistics="current", initialisation="shared", made=PromptKind, **prompt):
    settings = PromptTeachers(statistics=statistics, initialisation=initialisation, prompt=QUICK | prompt)
    return made(settings, backbone, CLASSES)


class InDoublePrecision(PromptKind):
    """Prompt teachers without rounding, which Adam and the normalisation of channels that hardly vary magnify."""

    def initial(self, seed, teacher):
        omega = super().initial(seed, teacher)
        return {name: value.double() if value.is_floating_point() else value for name, value in omega.items()}

    def place(self, images):
        return super().place(images).double()


def plain_frame(images, border, inner, mask):
    """Equation (1) with a loop over pixels, on images that are resized already."""
    result = torch.zeros(len(images), images.shape[1], SIZE, SIZE, dtype=border.dtype)
    first, pixel = (SIZE - inner) // 2, 0
    for row in range(SIZE):
        for column in range(SIZE):
            inside = first <= row < first + inner and first <= column < first + inner
            if inside:
                result[:, :, row, column] = images[:, :, row - first, column - first]
            if not inside or not mask:
                result[:, :, row, column] = result[:, :, row, column] + border[:, pixel]
                pixel += 1
    assert pixel == border.shape[1]
    return result


def plain_scores(outputs, omega):
    """Equation (2) before the softmax."""
    if "outputs" in omega:
        return outputs[:, omega["outputs"]]
    if "hidden_weight" in omega:
        outputs = torch.relu(outputs @ omega["hidden_weight"].T + omega["hidden_bias"])
    return outputs @ omega["weight"].T + omega["bias"]


def trained_alone(kind, records, teacher, seed):
    """One teacher by torch's own Adam."""
    settings = kind.prompt
    omega = kind.initial(seed, teacher)
    parameters = [value.requires_grad_() for value in omega.values() if value.is_floating_point()]
    optimiser = torch.optim.Adam(parameters, lr=settings.learning_rate)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, settings.decay)
    own = np.flatnonzero(records.assignment == teacher)
    images, labels = torch.from_numpy(records.inputs[own]).float() / 255, torch.from_numpy(records.labels[own])
    small = F.interpolate(images, size=(kind.inner, kind.inner), mode="bilinear", antialias=True).double()
    generator = torch_generator(seed, "teacher shuffle", teacher)
    for _ in range(settings.epochs):
        for batch in epoch_batches(len(own), settings.batch, generator):
            with batch_statistics(kind.backbone, kind.settings.statistics):
                outputs = kind.backbone.network(plain_frame(small[batch], omega["border"], kind.inner, settings.mask))
            loss = F.cross_entropy(plain_scores(outputs, omega), labels[batch])
            optimiser.zero_grad()
            loss.backward(inputs=parameters)
            optimiser.step()
        schedule.step()
    return {name: value.detach().numpy() for name, value in omega.items()}


@pytest.mark.parametrize(
    ("mapping", "mask", "statistics"),
    [("fc1", True, "current"), ("fc1", False, "original"), ("fc2", True, "original"), ("random", True, "current")],
)
def test_teachers_trained_together_are_those_trained_alone(backbone, records, mapping, mask, statistics):
    kind = teachers(copy.deepcopy(backbone).double(), statistics, made=InDoublePrecision, mapping=mapping, mask=mask)
    together = dict(kind.train(records, range(5), seed=7))
    for teacher in range(5):
        expected = trained_alone(kind, records, teacher, seed=7)
        assert together[teacher].keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(together[teacher][name], value, atol=1e-5, err_msg=f"{teacher} {name}")


@pytest.mark.parametrize("statistics", ["current", "original"])
def test_loss_gradients_equal_those_of_one_teacher_and_padding_has_none(backbone, records, statistics):
    backbone = copy.deepcopy(backbone).double()
    kind = teachers(backbone, mapping="fc2", statistics=statistics)
    starts = [kind.initial(0, teacher) for teacher in range(4)]
    generator = torch.Generator().manual_seed(2)
    omega = {name: torch.stack([start[name] for start in starts]).double() for name in starts[0]}
    omega["border"] = torch.randn(omega["border"].shape, generator=generator, dtype=torch.float64)
    counts, places = [3, 2, 0, 4], 4
    placed = kind.place(torch.from_numpy(records.inputs[:16])).double()
    labels = torch.from_numpy(records.labels[:16])
    found = kind._gradients(omega, dict(omega), placed, labels.view(4, places), counts)
    for teacher, count in enumerate(counts):
        leaves = {name: value[teacher].clone().requires_grad_() for name, value in omega.items()}
        mine = slice(places * teacher, places * teacher + count)
        if count:
            with batch_statistics(backbone, statistics):
                outputs = backbone.network(placed[mine] + kind.pattern(leaves["border"][None]))
            F.cross_entropy(plain_scores(outputs, leaves), labels[mine]).backward(inputs=list(leaves.values()))
        for name, gradient in zip(omega, found, strict=True):
            expected = leaves[name].grad if count else torch.zeros_like(leaves[name])
            torch.testing.assert_close(gradient[teacher], expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("inner", [5, 10])
def test_an_image_is_framed_as_the_equation_says(backbone, inner, mask):
    kind = teachers(backbone, inner=inner, mask=mask)
    images = torch.randint(0, 256, (2, 1, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    border = torch.randn(2, 1, len(kind.positions), generator=torch.Generator().manual_seed(1))
    small = F.interpolate(images.float() / 255, size=(inner, inner), mode="bilinear", antialias=True)
    found = kind.place(images) + kind.pattern(border)
    for number in range(2):
        expected = plain_frame(small[number : number + 1], border[number], inner, mask)
        torch.testing.assert_close(found[number : number + 1], expected)
    assert len(kind.positions) == (SIZE**2 - inner**2 if mask else SIZE**2)


def test_a_random_mapping_gives_each_class_an_output_of_its_own_that_no_record_decides(backbone, records):
    kind = teachers(backbone, mapping="random")
    states = dict(kind.train(records, range(5), seed=1))
    chosen = states[0]["outputs"]
    assert len(set(chosen.tolist())) == CLASSES
    assert all(np.array_equal(state["outputs"], chosen) for state in states.values())
    np.testing.assert_array_equal(kind.initial(1, 0)["outputs"].numpy(), chosen)
    own = teachers(backbone, mapping="random", initialisation="own")
    assert not np.array_equal(own.initial(1, 0)["outputs"].numpy(), own.initial(1, 1)["outputs"].numpy())


def test_passes_of_any_size_give_the_same_teachers(backbone, records):
    exact = copy.deepcopy(backbone).double()
    by_size = [
        dict(teachers(exact, made=InDoublePrecision, together=together).train(records, range(5), seed=0))
        for together in (4, 256)
    ]
    for teacher in range(5):
        for name, value in by_size[0][teacher].items():
            np.testing.assert_allclose(by_size[1][teacher][name], value, atol=1e-9)


@pytest.mark.parametrize("statistics", ["current", "original"])
def test_votes_are_those_of_each_teacher_asked_alone_batch_by_batch(backbone, records, statistics):
    kind = teachers(backbone, statistics=statistics)
    states = dict(kind.train(records, range(5), seed=0))
    images = records.inputs[:, :, 3:17, 3:17]
    batches = [np.arange(0, 20), np.arange(20, len(images))]
    votes = kind.vote(states.values(), Queries(images, batches))
    assert votes.dtype == np.uint8
    assert votes.shape == (len(images), 5)
    for teacher, state in states.items():
        omega = {name: torch.from_numpy(value) for name, value in state.items()}
        for batch in batches:
            with torch.no_grad(), batch_statistics(backbone, statistics):
                placed = kind.place(torch.from_numpy(images[batch]))
                outputs = backbone.network(plain_frame_of(kind, placed, omega["border"]))
            np.testing.assert_array_equal(votes[batch, teacher], plain_scores(outputs, omega).argmax(dim=1).numpy())


def test_votes_on_the_sources_own_statistics_take_no_more_images_at_once_than_is_allowed(backbone, records):
    kinds = [teachers(backbone, statistics="original", together=together) for together in (8, 256)]
    states = list(dict(kinds[0].train(records, range(2), seed=0)).values())
    queries = Queries(records.inputs, [np.arange(20), np.arange(20, len(records.inputs))])
    sizes = []
    with kinds[0].backbone.network.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0]))):
        few = kinds[0].vote(states, queries)
    assert max(sizes) <= 8
    np.testing.assert_array_equal(few, kinds[1].vote(states, queries))


def plain_frame_of(kind, placed, border):
    first = (SIZE - kind.inner) // 2
    return plain_frame(
        placed[:, :, first : first + kind.inner, first : first + kind.inner], border, kind.inner, kind.prompt.mask
    )


def test_prompts_learn_what_the_source_was_not_made_for(backbone, records):
    kind = teachers(backbone, epochs=10)
    states = dict(kind.train(records, range(5), seed=0))
    votes = kind.vote(states.values(), Queries(records.inputs, [np.arange(len(records.inputs))]))
    own = votes[np.arange(len(votes)), records.assignment]
    assert (own == records.labels).mean() > 0.9


def test_the_source_is_left_as_it_was(backbone, records):
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    dict(teachers(backbone).train(records, range(5), seed=0))
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
    assert all(parameter.requires_grad for parameter in backbone.parameters())


def test_an_initial_mapping_is_the_projects_initial_head(backbone):
    start = teachers(backbone).initial(4, 2)
    np.testing.assert_array_equal(start["weight"].numpy(), initial_head(backbone.feature_dim, CLASSES, 4).weight)
    assert not start["border"].any()


def test_a_teacher_with_too_few_records_is_passed_over(backbone, records):
    few = Records(records.inputs[:3], records.labels[:3], np.array([0, 0, 1]), CLASSES)
    assert list(dict(teachers(backbone).train(few, range(3), seed=0))) == [0]
    assert list(dict(teachers(backbone, statistics="original").train(few, range(3), seed=0))) == [0, 1]
    assert not dict(teachers(backbone).train(few, [1, 2], seed=0))


@pytest.mark.parametrize("counts", [[4, 7, 9, 5, 8], [4, 7, 2, 5, 8], [3, 3, 0, 2, 1], [30, 0, 0, 0, 0]])
@pytest.mark.parametrize("statistics", ["current", "original"])
def test_the_shape_of_a_pass_follows_from_settings_and_not_from_how_many_records_anybody_has(
    backbone, records, counts, statistics
):
    assignment = np.repeat(np.arange(5), counts)
    images = np.resize(records.inputs, (len(assignment), 1, 20, 20))
    data = Records(images, np.resize(records.labels, len(assignment)), assignment, CLASSES)
    for together, passes in ((256, {20}), (12, {12, 8})):
        kind, sizes = teachers(backbone, statistics=statistics, together=together), set()
        with kind.backbone.network.register_forward_pre_hook(lambda _, given, sizes=sizes: sizes.add(len(given[0]))):
            dict(kind.train(data, range(5), seed=0))
        assert sizes <= passes
        assert max(passes) in sizes


def test_states_of_other_settings_are_refused(backbone, records):
    states = dict(teachers(backbone, mapping="fc2").train(records, [0], seed=0))
    with pytest.raises(ArtefactError, match="other settings"):
        teachers(backbone).vote(states.values(), Queries(records.inputs, [np.arange(len(records.inputs))]))
