"""Clients: joint answers equal separate ones; a file becomes a teacher when it fits."""

import copy

import numpy as np
import pytest
import torch

from terrine.errors import InputError, SettingError
from terrine.models.architecture import build_backbone
from terrine.models.statistics import batch_statistics
from terrine.teachers.linear import LinearHeads
from terrine.teachers.network_training import Classifier
from terrine.transcription.clients import FileTeacher, LinearClients, NetworkClients, load_model
from terrine.transcription.settings import TranscriptionTeacher

PLAIN = TranscriptionTeacher(architecture="small_cnn")


@pytest.fixture
def images():
    return torch.randint(0, 256, (6, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def classifier(seed):
    backbone = build_backbone("small_cnn", channels=1, size=8, seed=seed)
    return Classifier(backbone.network, backbone.feature_dim, 4, seed)


def states_of(networks):
    names = [name for name, _ in networks[0].named_parameters()]
    return [{name: network.get_parameter(name).detach().numpy() for name in names} for network in networks]


def test_heads_on_shared_layers_answer_as_each_would_alone(images):
    generator = np.random.default_rng(0)
    backbone = build_backbone("scattering", channels=1, size=8, seed=0, projection=10)
    heads = LinearHeads(
        generator.normal(size=(5, 4, 10)).astype(np.float32), generator.normal(size=(5, 4)).astype(np.float32)
    )
    found = LinearClients(backbone, heads, TranscriptionTeacher(temperature=0.5)).probabilities(images)
    assert found.shape == (5, 6, 4)
    features = backbone.features(images, "current")
    for client in range(5):
        scores = features @ torch.tensor(heads.weight[client]).T + torch.tensor(heads.bias[client])
        torch.testing.assert_close(found[client], (scores / 0.5).softmax(-1), atol=1e-6, rtol=1e-5)


def test_networks_answer_as_each_would_alone(images):
    networks = [classifier(seed) for seed in range(3)]
    clients = NetworkClients(classifier(9), states_of(networks), TranscriptionTeacher(temperature=2.0))
    found = clients.probabilities(images)
    for client, network in enumerate(networks):
        with torch.no_grad(), batch_statistics(network, "current"):
            alone = (network(images) / 2).softmax(-1)
        torch.testing.assert_close(found[client], alone, atol=1e-5, rtol=1e-4)


def test_a_client_hears_nothing_of_the_others(images):
    networks = [classifier(seed) for seed in range(3)]
    before = NetworkClients(classifier(9), states_of(networks), PLAIN).probabilities(images)
    networks[1] = classifier(7)
    after = NetworkClients(classifier(9), states_of(networks), PLAIN).probabilities(images)
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.equal(before[1], after[1])


def test_only_one_teacher_can_be_the_discriminator(images):
    clients = NetworkClients(classifier(9), states_of([classifier(0)]), PLAIN)
    floating = (images.float() / 255).requires_grad_()
    scores = clients.discriminate(floating)[1]
    scores.sum().backward()
    assert floating.grad.abs().sum() > 0
    torch.testing.assert_close(scores.detach().softmax(-1), clients.probabilities(images)[0], atol=1e-6, rtol=1e-5)
    with pytest.raises(SettingError, match="single teacher"):
        NetworkClients(classifier(9), states_of([classifier(0), classifier(1)]), PLAIN).discriminate(floating)


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_file_of_weights_is_a_teacher(tmp_path, images, suffix):
    import safetensors.torch

    network, path = classifier(3), tmp_path / f"teacher.{suffix}"
    state = copy.deepcopy(network.state_dict())
    if suffix == "pt":
        torch.save(state, path)
    else:
        safetensors.torch.save_file(state, path)
    settings = TranscriptionTeacher(file=path, architecture="small_cnn", mean=0.5, deviation=0.25)
    found = FileTeacher(*load_model(path, settings, channels=1, size=8, classes=4), settings).probabilities(images)
    with torch.no_grad(), batch_statistics(network, "current"):
        expected = network((images.float() / 255 - 0.5) / 0.25).softmax(-1)
    torch.testing.assert_close(found[0], expected, atol=1e-6, rtol=1e-5)


def test_a_torchvision_file_takes_grey_images_in_colour(tmp_path):
    from terrine import vision

    path = tmp_path / "teacher.pt"
    torch.save(vision.torchvision.models.squeezenet1_1(num_classes=5).state_dict(), path)
    settings = TranscriptionTeacher(file=path, architecture="torchvision:squeezenet1_1")
    images = torch.zeros(2, 1, 32, 32, dtype=torch.uint8)
    teacher = FileTeacher(*load_model(path, settings, channels=1, size=32, classes=5), settings)
    assert teacher.probabilities(images).shape == (1, 2, 5)


def test_a_file_of_another_class_count_is_refused(tmp_path):
    torch.save(classifier(3).state_dict(), tmp_path / "teacher.pt")
    with pytest.raises(InputError, match=r"does not fit small_cnn for 10 classes: .*same classes"):
        load_model(tmp_path / "teacher.pt", PLAIN, channels=1, size=8, classes=10)


def test_a_file_of_another_architecture_is_refused(tmp_path):
    torch.save(classifier(3).state_dict(), tmp_path / "teacher.pt")
    with pytest.raises(InputError, match="holds no cryptonet"):
        load_model(
            tmp_path / "teacher.pt", TranscriptionTeacher(architecture="cryptonet"), channels=1, size=8, classes=4
        )
    for architecture in ("timm:none_such", "torchvision:none_such"):
        settings = TranscriptionTeacher(file=tmp_path / "teacher.pt", architecture=architecture)
        with pytest.raises(SettingError, match="architecture"):
            load_model(tmp_path / "teacher.pt", settings, channels=3, size=32, classes=4)


def test_a_file_standardised_by_other_channels_than_the_models_is_refused(tmp_path):
    torch.save(classifier(3).state_dict(), tmp_path / "teacher.pt")
    settings = TranscriptionTeacher(architecture="small_cnn", mean=(0.1, 0.2, 0.3))
    with pytest.raises(SettingError, match=r"teacher\.mean has 3 numbers, and the model 1 channel"):
        load_model(tmp_path / "teacher.pt", settings, channels=1, size=8, classes=4)


def test_a_file_with_code_is_refused_unread(tmp_path):
    class Trap:
        def __reduce__(self):
            return (print, ("it ran",))

    torch.save({"weight": Trap()}, tmp_path / "teacher.pt")
    with pytest.raises(InputError, match="Python objects"):
        load_model(tmp_path / "teacher.pt", PLAIN, channels=1, size=8, classes=4)
