"""The student for one image at a time learns, from public images alone, what company would have told it."""

import numpy as np
import pytest
import torch

from terrine.classifiers import LinearHead, predict
from terrine.deployment.alone import student_alone
from terrine.deployment.domains import draw_domain
from terrine.determinism.randomness import numpy_generator
from terrine.models.reference import fit_reference
from terrine.models.registry import build_backbone
from terrine.synthetic.registry import draw


@pytest.fixture(scope="module")
def student():
    """A student on scattering features, and public images."""
    public = draw("stylegan", seed=0, first=0, count=300, size=12, channels=1).numpy()
    backbone = build_backbone("scattering", channels=1, size=12, seed=1, orientations=4, projection=24)
    fit_reference(backbone, public, [np.arange(300)])
    weight = np.random.default_rng(2).normal(size=(4, 24)).astype(np.float32)
    return backbone, LinearHead(weight, np.zeros(4, np.float32)), public


def test_it_agrees_with_the_student_in_company_in_domains_it_has_not_seen_more_than_fixed_statistics_do(student):
    backbone, head, public = student
    made = student_alone(backbone, head, [public], seed=0, domains=48)
    assert made[0].feature_dim == made[1].classes == 4
    unseen = draw("dead_leaves", seed=9, first=0, count=300, size=12, channels=1).numpy()
    fixed, alone = [], []
    for number in range(30):
        images = draw_domain([unseen], number, 60, numpy_generator(9, "unseen", number))
        company = predict(head, backbone.features(images, "current").numpy()).argmax(1)
        fixed.append(predict(head, backbone.features(images, "original").numpy()).argmax(1) == company)
        alone.append(predict(made[1], made[0].features(images, "original").numpy()).argmax(1) == company)
    assert np.mean(alone) > np.mean(fixed) + 0.05


def test_it_is_the_same_on_any_number_of_threads(student):
    backbone, head, public = student
    threads = torch.get_num_threads()
    weights = []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            weights.append(student_alone(backbone, head, [public], seed=0, domains=10)[0].network.projection)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*weights)


def test_a_network_without_batch_normalisation_needs_none():
    backbone = build_backbone("cryptonet", channels=1, size=28, seed=0)
    head = LinearHead(np.ones((2, backbone.feature_dim), np.float32), np.zeros(2, np.float32))
    assert student_alone(backbone, head, [np.zeros((4, 1, 28, 28), np.uint8)], seed=0) is None


def test_domains_differ_from_one_another_more_than_their_images_and_stay_in_range():
    pool = draw("dead_leaves", seed=0, first=0, count=100, size=16, channels=1).numpy()
    drawn = [draw_domain([pool], number, 20, numpy_generator(0, "test", number)) for number in range(30)]
    assert all(images.shape == (20, 1, 16, 16) and images.min() >= 0 and images.max() <= 1 for images in drawn)
    brightness = np.array([images.mean((1, 2, 3)).numpy() for images in drawn])
    assert brightness.mean(1).std() > 2 * brightness.std(1).mean()
