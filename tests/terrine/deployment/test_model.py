"""The student as it is served: files, requests, statistics, refusals."""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from terrine.deployment import model as model_module
from terrine.deployment.manifest import seal
from terrine.deployment.model import LARGEST_BATCH, SMALL, StudentModel, batches, blocks, check_images, check_rows
from terrine.errors import ArtefactError, InputError, SettingError
from terrine.heads import head_from_arrays, predict
from terrine.models.backbone_files import load_backbone
from tests.student_folders import CLASSES, KINDS, images, make_student


@pytest.fixture(scope="module")
def students(tmp_path_factory):
    folder = tmp_path_factory.mktemp("students")
    return {kind: make_student(folder / kind, kind) for kind in KINDS}


def plain(folder, batch, statistics="current"):
    """The student by its parts: features of one batch, then the head."""
    features = load_backbone(folder / "backbone.safetensors").features(torch.from_numpy(batch), statistics)
    return predict(head_from_arrays(load_file(folder / "head.safetensors")), features.numpy())


@pytest.mark.parametrize("statistics", ["single", "frozen", "original"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_has_the_same_bits_alone_and_in_any_batch(students, kind, statistics):
    model = StudentModel.load(students[kind], statistics)
    batch = images(41, seed=7)
    together = model.predict(batch)
    assert len(np.unique(together.round(4), axis=0)) > 10
    for number in range(0, 41, 3):
        np.testing.assert_array_equal(model.predict(batch[number : number + 1])[0], together[number])
    order = np.random.default_rng(0).permutation(41)
    np.testing.assert_array_equal(model.predict(batch[order]), together[order])
    bright = np.concatenate([batch[:5], np.full((20, 1, 12, 12), 255, np.uint8)])
    np.testing.assert_array_equal(model.predict(bright)[:5], together[:5])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 5, 17])
def test_reference_images_count_as_two_images_of_a_small_request(students, kind, count):
    """16 reference images once and own ones eight times each are n images and 2, in one plain batch."""
    batch = images(count, seed=8)
    reference = load_file(students[kind] / "reference.safetensors")["images"][:16]
    crowd = np.concatenate([np.repeat(batch, 8, axis=0), reference])
    expected = plain(students[kind], crowd)[: 8 * count : 8]
    np.testing.assert_allclose(StudentModel.load(students[kind], "current").predict(batch), expected, atol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_that_is_large_enough_is_one_batch_of_its_own(students, kind):
    batch = images(SMALL, seed=9)
    answers = StudentModel.load(students[kind], "current").predict(batch)
    np.testing.assert_allclose(answers, plain(students[kind], batch), atol=1e-5)
    assert answers.dtype == np.float32
    assert answers.shape == (SMALL, CLASSES)
    np.testing.assert_allclose(answers.sum(axis=1), 1, atol=1e-5)


def test_a_large_request_is_cut_into_batches_that_take_turns(students, monkeypatch):
    monkeypatch.setattr(model_module, "LARGEST_BATCH", 80)
    batch = images(150, seed=10)
    answers = StudentModel.load(students["scattering"], "current").predict(batch)
    for first in range(2):
        np.testing.assert_allclose(answers[first::2], plain(students["scattering"], batch[first::2]), atol=1e-5)


@pytest.mark.parametrize("count", [1, 16, 511, 512, 513, 1024, 1025, 5000])
def test_batches_cover_a_request_and_are_as_equal_as_can_be(count):
    parts = batches(count)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(count))
    sizes = [len(part) for part in parts]
    assert max(sizes) <= LARGEST_BATCH
    assert max(sizes) - min(sizes) <= 1
    assert count < SMALL or min(sizes) >= SMALL
    np.testing.assert_array_equal(np.concatenate(blocks(count)), np.arange(count))


def test_requests_do_not_meet_in_a_batch_though_they_come_at_once(students):
    model = StudentModel.load(students["scattering"], "current")
    requests = [images(count, seed=count) for count in (1, 3, 40, 70, 2, 90, 5, 1)]
    expected = [model.predict(request) for request in requests]
    with ThreadPoolExecutor(4) as pool:
        for answers, alone in zip(pool.map(model.predict, requests * 3), expected * 3, strict=True):
            np.testing.assert_array_equal(answers, alone)


@pytest.mark.parametrize("statistics", ["current", "single", "frozen", "original"])
def test_floats_and_bytes_of_one_image_get_one_answer(students, statistics):
    model = StudentModel.load(students["scattering"], statistics)
    batch = images(20, seed=11)
    np.testing.assert_array_equal(model.predict(batch.astype(np.float32) / 255), model.predict(batch))
    np.testing.assert_array_equal(model.predict(torch.from_numpy(batch)), model.predict(batch))


# Not of a mirrored network: what is frozen is the mean of its two batches, of images and of mirror images.
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"timm"}))
def test_frozen_on_own_images_answers_for_these_like_current_statistics(students, kind):
    own = images(70, seed=12)
    frozen = StudentModel.load(students[kind], "frozen", reference=own)
    np.testing.assert_allclose(frozen.predict(own), plain(students[kind], own), atol=2e-4)
    stored = StudentModel.load(students[kind], "frozen")
    assert np.abs(stored.predict(own) - frozen.predict(own)).max() > 1e-3


def test_single_statistics_are_those_of_a_request_of_one(students):
    """In a network with one normalisation; in a deeper one the reference images would react to the image."""
    batch = images(5, seed=16)
    single = StudentModel.load(students["scattering"], "single").predict(batch)
    current = StudentModel.load(students["scattering"], "current")
    alone = np.concatenate([current.predict(image[None]) for image in batch])
    np.testing.assert_allclose(single, alone, atol=2e-5)


def test_own_reference_images_count_as_many_as_they_are(students):
    own, batch = images(30, seed=13), images(4, seed=14)
    answers = StudentModel.load(students["resnet10"], "current", reference=own).predict(batch)
    np.testing.assert_allclose(answers, plain(students["resnet10"], np.concatenate([batch, own]))[:4], atol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_unless_told_otherwise_a_student_answers_one_image_in_company_as_it_does_alone(students, kind):
    own = images(20, seed=18)
    assert StudentModel.load(students[kind]).statistics == "original"
    assert StudentModel.load(students[kind], reference=own).statistics == "frozen"
    assert StudentModel.load(students[kind], "current").statistics == "current"


def test_a_student_with_released_moments_answers_with_them_alone_and_in_a_folder_of_200_alike(tmp_path, students):
    folder = make_student(tmp_path / "student", moments=True)
    model = StudentModel.load(folder)
    assert (model.statistics, model.note) == ("released", None)
    batch = images(200, seed=19)
    together = model.predict(batch)
    for number in (0, 7, 199):
        np.testing.assert_allclose(model.predict(batch[number : number + 1])[0], together[number], atol=1e-6)
    backbone, moments = load_backbone(folder / "backbone.safetensors"), load_file(folder / "moments.safetensors")
    backbone.network.standardise.running_mean = torch.from_numpy(moments["mean"])
    backbone.network.standardise.running_var = torch.from_numpy(moments["variance"])
    head = head_from_arrays(load_file(folder / "head.safetensors"))
    expected = predict(head, backbone.features(torch.from_numpy(batch), "original").numpy())
    np.testing.assert_allclose(together, expected, atol=1e-5)
    assert np.abs(together - StudentModel.load(folder, "original").predict(batch)).max() > 1e-3
    assert StudentModel.load(folder, reference=images(20)).statistics == "frozen"
    with pytest.raises(SettingError, match="has no released moments"):
        StudentModel.load(students["scattering"], "released")
    assert "privacy.moments" in StudentModel.load(students["scattering"]).note
    assert StudentModel.load(students["scattering"], "current").note is None


def test_a_student_trained_with_original_statistics_is_used_with_them(tmp_path):
    folder = make_student(tmp_path / "student", "resnet10", statistics="original")
    batch = images(6, seed=15)
    model = StudentModel.load(folder)
    assert model.statistics == "original"
    with pytest.raises(SettingError, match="Leave --statistics out"):
        StudentModel.load(folder, "released")
    np.testing.assert_allclose(model.predict(batch), plain(folder, batch, "original"), atol=1e-5)


def test_loading_never_unpickles(students, monkeypatch):
    def forbidden(*arguments, **named):
        raise AssertionError("something was unpickled")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, forbidden)
    StudentModel.load(students["resnet10"], "frozen").predict(images(2))


def test_a_pickle_under_the_name_of_weights_is_refused_even_when_sealed(tmp_path):
    folder = make_student(tmp_path / "student")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "head.safetensors").write_bytes(pickle.dumps({"weight": 1}))
    description = {name: value for name, value in manifest.items() if name not in ("digest", "digests")}
    (folder / "manifest.json").write_text(json.dumps(seal(folder, description)))
    with pytest.raises(ArtefactError, match=r"head\.safetensors cannot be read"):
        StudentModel.load(folder)


def test_an_edited_file_is_refused_on_loading(tmp_path):
    folder = make_student(tmp_path / "student")
    path = folder / "head.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtefactError, match=r"head\.safetensors was changed"):
        StudentModel.load(folder)


def test_bad_requests_are_refused_with_a_sentence(students):
    model = StudentModel.load(students["scattering"])
    with pytest.raises(InputError, match=r"this student takes \[images, 1, 12, 12\]"):
        model.predict(images(2)[:, :, :5])
    with pytest.raises(SettingError, match="released, current, single, frozen, original"):
        StudentModel.load(students["scattering"], "average")
    with pytest.raises(InputError, match="shape"):
        StudentModel.load(students["scattering"], reference=np.zeros((4, 3, 12, 12), np.uint8))


def test_parts_that_do_not_fit_together_are_refused(tmp_path):
    import json

    from safetensors.numpy import save_file

    from terrine.deployment.manifest import seal

    folder = make_student(tmp_path / "student")
    manifest = json.loads((folder / "manifest.json").read_text())
    save_file({"weight": np.zeros((4, 5), np.float32), "bias": np.zeros(4, np.float32)}, folder / "head.safetensors")
    description = {name: value for name, value in manifest.items() if name not in ("digest", "digests")}
    (folder / "manifest.json").write_text(json.dumps(seal(folder, description)))
    with pytest.raises(ArtefactError, match="do not fit together"):
        StudentModel.load(folder)


def test_a_student_of_a_table_takes_rows(tmp_path):
    import json

    from safetensors.numpy import save_file

    from terrine.deployment.manifest import seal
    from terrine.models.architecture import build_backbone
    from terrine.models.backbone_files import save_backbone

    numbers = np.random.default_rng(5)
    rows = numbers.normal(size=(20, 3)).astype(np.float32)
    head = {"weight": numbers.normal(size=(2, 3)).astype(np.float32), "bias": np.zeros(2, np.float32)}
    save_backbone(build_backbone("columns", channels=3, size=1, seed=0), tmp_path / "backbone.safetensors")
    save_file(head, tmp_path / "head.safetensors")
    save_file({"images": rows}, tmp_path / "reference.safetensors")
    description = {"class_names": ["no", "yes"], "statistics": "original", "size": 1, "channels": 3}
    (tmp_path / "manifest.json").write_text(json.dumps(seal(tmp_path, description)))
    for statistics in (None, "current", "single"):
        answers = StudentModel.load(tmp_path, statistics).predict(rows * 2)
        np.testing.assert_allclose(answers, predict(head_from_arrays(head), rows * 2), atol=1e-6)
    with pytest.raises(InputError, match=r"\[rows, 3\]"):
        StudentModel.load(tmp_path).predict(images(2).astype(np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused_also_under_a_seal(tmp_path, value):
    folder = make_student(tmp_path / "student")
    arrays = load_file(folder / "head.safetensors")
    arrays["bias"][1] = value
    save_file(arrays, folder / "head.safetensors")
    description = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(seal(folder, description)))
    with pytest.raises(ArtefactError, match="NaN or infinite weights"):
        StudentModel.load(folder)


@pytest.mark.parametrize("field", ["class_names", "size", "statistics"])
def test_a_manifest_that_is_not_a_students_is_refused_also_under_a_seal(tmp_path, field):
    folder = make_student(tmp_path / "student")
    description = {**json.loads((folder / "manifest.json").read_text()), field: None}
    (folder / "manifest.json").write_text(json.dumps(seal(folder, description)))
    with pytest.raises(ArtefactError, match="not that of a student"):
        StudentModel.load(folder)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_in_the_unit_interval_become_float32(dtype):
    images = np.random.default_rng(0).random((3, 1, 4, 4)).astype(dtype)
    checked = check_images(images, 1, 4)
    assert checked.dtype == np.float32
    np.testing.assert_array_equal(checked, images.astype(np.float32))


def test_uint8_stays_and_strided_arrays_become_contiguous():
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), dtype=np.uint8).transpose(0, 3, 1, 2)[::2]
    checked = check_images(images, 3, 4)
    assert checked.flags.c_contiguous
    np.testing.assert_array_equal(checked, images)


GOOD = np.zeros((2, 1, 4, 4), np.float32)


@pytest.mark.parametrize(
    ("images", "complaint"),
    [
        (GOOD.astype(np.int64), "dtype int64"),
        (GOOD.astype(complex), "dtype complex128"),
        (np.array([["a"]]), "dtype <U1"),
        (GOOD[0], r"shape \[1, 4, 4\]"),
        (GOOD[:, :, :3], r"this student takes \[images, 1, 4, 4\]"),
        (GOOD.transpose(0, 2, 3, 1), r"shape \[2, 4, 4, 1\]"),
        (GOOD[:0], "no image in the batch"),
        (GOOD + np.array([np.nan, 0]).reshape(2, 1, 1, 1), "NaN in image 0"),
        (GOOD + np.array([0, np.inf]).reshape(2, 1, 1, 1), "infinite value in image 1"),
        (GOOD - 0.01, "values from -0.01"),
        (GOOD + 255, "Divide values from 0 to 255 by 255"),
    ],
)
def test_anything_else_is_refused_with_a_sentence(images, complaint):
    with pytest.raises(InputError, match=complaint):
        check_images(images, 1, 4)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (np.zeros((2, 3), np.int64), "dtype int64"),
        (np.zeros((2, 4)), r"this student takes \[rows, 3\]"),
        (np.zeros(3), r"shape \[3\]"),
        (np.zeros((0, 3)), "no row"),
        (np.array([[0, 0, 0], [0, np.nan, 0]]), "Row 1 holds NaN"),
    ],
)
def test_rows_that_do_not_fit_a_table_are_refused_with_a_sentence(rows, complaint):
    with pytest.raises(InputError, match=complaint):
        check_rows(rows, 3)
