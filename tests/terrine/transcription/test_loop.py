"""The loop: what it hears, what it learns, and that a restored one goes on with the same bits."""

import pytest
import torch

from terrine.errors import ArtefactError, SettingError
from terrine.models.architecture import build_backbone
from terrine.transcription.annotation import DataAnnotation
from terrine.transcription.generator import Generator, generator_loss
from terrine.transcription.loop import Loop, TranscribedStudent
from terrine.transcription.settings import Annotation, Transcription


def settings(student=None, generator=None, **others):
    """Four iterations of six images, with more than one step of both players; changes are laid over."""
    own = {"learning_rate": 0.01, "loss": "squared", "steps": 3, "final_steps": 3} | (student or {})
    inputs = {"learning_rate": 0.01, "steps": 2, "inputs": "fresh"} | (generator or {})
    whole = {"iterations": 4, "batch": 6, "noise": "none", "annotation": {"sigma": 0}} | others
    return Transcription(student=own, generator=inputs, **whole)


def loop(settings, architecture="cryptonet", **others):
    student = TranscribedStudent(build_backbone(architecture, channels=1, size=8, seed=0), 4, 0)
    return Loop(student, Generator(1, 8, latent=3, width=4, seed=0), settings, seed=0, **others)


def teacher(images):
    """Some fixed function of images to probabilities [1, B, 4], on its own scale of loudness."""
    flat = images.float().flatten(1) / 255
    weights = torch.linspace(-1, 1, flat.shape[1] * 4).reshape(4, -1).sin()
    return (flat @ weights.T * 3).softmax(-1)[None]


def annotate(posed, said=None, top_k=4):
    told = {"limit": "clip", "distillation": "classic", "gradient_of": "scores"}
    mechanism = DataAnnotation(Annotation(beta=1.0, sigma=0, top_k=top_k, step=1.0, **told))
    said = teacher(posed.images) if said is None else said
    return mechanism.annotate(mechanism.total(said, posed.probabilities), posed.probabilities, 1, None)


def run(state, iterations):
    while state.iteration < iterations:
        state.learn(annotate(state.pose()))
    return state


def same(first, second):
    one, other = first.tensors(), second.tensors()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("inputs", ["fresh", "trained"])
@pytest.mark.parametrize("architecture", ["cryptonet", "scattering"])
def test_a_restored_loop_goes_on_with_the_bits_of_one_that_was_not_interrupted(inputs, architecture):
    chosen = settings(generator={"inputs": inputs})
    whole = run(loop(chosen, architecture), 4)
    half = run(loop(chosen, architecture), 2)
    kept = {name: value.clone() for name, value in half.tensors().items()}
    resumed = loop(chosen, architecture)
    resumed.restore(kept, 2)
    run(resumed, 4)
    assert same(whole, resumed)
    for each in (whole, resumed):
        each.finish()
    assert same(whole, resumed)


def test_the_question_stays_the_same_until_it_is_answered():
    state = loop(settings())
    assert state.pose() is state.pose()
    state.learn(annotate(state.pose()))
    assert state.pose().iteration == 1


def test_nothing_reaches_the_loop_but_the_annotation():
    """Two teachers that differ only in masked entries of the gradient lead to equal students and generators."""
    first, second = loop(settings()), loop(settings())
    for _ in range(2):
        posed = first.pose()
        said = teacher(posed.images).double().clamp(1e-4, 1)
        masked = (posed.probabilities - said).abs().argsort(-1)[..., :2]
        other = said.scatter_add(-1, masked, torch.full(masked.shape, 1e-9, dtype=torch.float64))
        assert not torch.equal(said, other)
        first.learn(annotate(posed, said, top_k=2))
        second.learn(annotate(second.pose(), other, top_k=2))
    assert same(first, second)


def test_one_step_is_that_of_separate_passes():
    """Sharing the forward pass does not change the first step, compared with one written out with separate passes."""
    student = {"learning_rate": 0.05, "optimiser": "sgd", "loss": "cross_entropy", "steps": 1, "final_steps": 0}
    chosen = settings(student, {"steps": 1, "inputs": "trained"}, iterations=1)
    shared, apart = loop(chosen), loop(chosen)
    annotation = annotate(shared.pose())
    shared.learn(annotation)

    images = apart.generator(apart.vectors)
    rounded = images + ((images * 255).round() / 255 - images).detach()
    scores = apart.student(rounded.detach())[1]
    own = apart.student.weights()
    gradients = torch.autograd.grad(-(annotation * scores.log_softmax(1)).sum(1).mean(), own)
    images = apart.generator(apart.vectors)
    rounded = images + ((images * 255).round() / 255 - images).detach()
    features, scores = apart.student(rounded)
    total = generator_loss(scores, features, chosen.generator) - (annotation * scores.log_softmax(1)).sum(1).mean()
    optimiser = torch.optim.Adam([*apart.generator.parameters(), apart.vectors], lr=0.01)
    total.backward()
    optimiser.step()
    with torch.no_grad():
        for weight, gradient in zip(own, gradients, strict=True):
            weight -= 0.05 * gradient
    for name, value in shared.tensors().items():
        if not name.startswith("optimiser"):
            torch.testing.assert_close(value, apart.tensors()[name], atol=1e-6, rtol=1e-5)


def test_inputs_are_trained_only_where_algorithm_1_is_followed():
    for inputs, moved in (("trained", True), ("fresh", False)):
        state = loop(settings(generator={"inputs": inputs}))
        before = state.vectors.detach().clone()
        run(state, 1)
        assert torch.equal(before, state.vectors) != moved


def test_a_generator_without_steps_stays_as_it_was_drawn():
    state = loop(settings(generator={"steps": 0}))
    before = {name: value.clone() for name, value in state.generator.state_dict().items()}
    run(state, 2)
    assert all(torch.equal(before[name], value) for name, value in state.generator.state_dict().items())


def test_another_discriminator_is_what_the_generator_learns_from():
    seen = []

    def discriminate(images):
        seen.append(images.requires_grad)
        return images.flatten(1), images.flatten(1)[:, :4]

    run(loop(settings(), discriminator=discriminate), 1)
    assert seen == [True, True]


def test_the_student_follows_its_teacher():
    state = loop(settings({"steps": 12}, iterations=6, batch=48), "small_cnn")
    posed = state.pose()
    before = float((posed.probabilities.argmax(1) == teacher(posed.images)[0].argmax(1)).float().mean())
    run(state, 6)
    posed = state.pose()
    after = float((posed.probabilities.argmax(1) == teacher(posed.images)[0].argmax(1)).float().mean())
    assert after > max(0.8, before)


def test_what_does_not_fit_is_refused():
    state = loop(settings())
    with pytest.raises(SettingError, match="annotation has shape"):
        state.learn(torch.zeros(6, 3))
    with pytest.raises(ArtefactError, match="belongs to another transcription"):
        state.restore({"student.head.weight": torch.zeros(1)}, 1)
