"""The seal of a student's folder, and the choice of its reference images."""

import json

import numpy as np
import pytest

from terrine.deployment.manifest import MANIFEST, check_seal, seal
from terrine.deployment.reference import affordable, choose_reference
from terrine.errors import ArtefactError, InputError
from tests.student_folders import make_student

FILES = ("backbone.safetensors", "head.safetensors", "reference.safetensors", MANIFEST)


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    return make_student(tmp_path_factory.mktemp("seal") / "student")


def test_a_folder_as_it_was_written_is_accepted_and_described(student):
    manifest = check_seal(student)
    assert manifest["class_names"][0] == "class 0"
    assert sorted(manifest["digests"]) == sorted(FILES[:3])


@pytest.mark.parametrize("name", FILES)
def test_a_file_edited_by_a_byte_is_refused_with_its_name(student, name):
    path = student / name
    content = path.read_bytes()
    try:
        for place in (0, len(content) // 3, len(content) // 2, len(content) - 2):
            for change in (1, 32, 128):
                edited = bytearray(content)
                edited[place] ^= change
                path.write_bytes(edited)
                with pytest.raises(ArtefactError, match=name):
                    check_seal(student)
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(student, name):
    path = student / name
    content = path.read_bytes()
    path.unlink()
    try:
        with pytest.raises(ArtefactError, match=name):
            check_seal(student)
    finally:
        path.write_bytes(content)


def test_files_that_changed_places_are_refused(student):
    one, other = student / FILES[1], student / FILES[2]
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])
    try:
        with pytest.raises(ArtefactError, match="digest does not match"):
            check_seal(student)
    finally:
        one.write_bytes(contents[0])
        other.write_bytes(contents[1])


def test_a_manifest_that_names_a_file_outside_the_folder_is_refused(tmp_path):
    folder = tmp_path / "student"
    folder.mkdir()
    (tmp_path / "secret").write_text("not yours")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / MANIFEST).write_text(json.dumps(seal(folder, {})))
    with pytest.raises(ArtefactError, match="leads outside"):
        check_seal(folder)


def test_a_file_that_was_added_and_a_manifest_that_names_none_are_refused(tmp_path):
    folder = make_student(tmp_path / "student")
    (folder / "more.bin").write_bytes(b"more")
    with pytest.raises(ArtefactError, match=r"more\.bin is not named"):
        check_seal(folder)
    (folder / "more.bin").unlink()
    own = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(seal(tmp_path / "nowhere", {**own, "digests": {}})))
    with pytest.raises(ArtefactError, match=r"backbone\.safetensors is not named"):
        check_seal(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"digests": {}}', "no JSON", '{"digest": "0", "digests": []}'])
def test_what_is_no_sealed_manifest_is_refused_with_a_sentence(tmp_path, text):
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(ArtefactError, match=r"manifest\.json.*Get the folder again"):
        check_seal(tmp_path)


def plain(probabilities, count):
    """Classes in turn give their most certain candidate that is left."""
    left = {number: [] for number in range(probabilities.shape[1])}
    for index, row in enumerate(probabilities):
        left[int(row.argmax())].append(index)
    for candidates in left.values():
        candidates.sort(key=lambda index: (-probabilities[index].max(), index))
    chosen = []
    while len(chosen) < min(count, len(probabilities)):
        chosen.extend([candidates.pop(0) for candidates in left.values() if candidates])
    return chosen[:count]


@pytest.mark.parametrize("count", [1, 7, 30, 100])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_classes_take_turns_giving_their_most_certain_image(seed, count):
    generator = np.random.default_rng(seed)
    probabilities = generator.dirichlet([0.3, 0.5, 2.0], size=30).round(2)  # equals occur
    assert choose_reference(probabilities, count).tolist() == plain(probabilities, count)


def test_a_student_that_knows_one_class_only_still_has_reference_images():
    probabilities = np.array([[0.2, 0.8], [0.1, 0.9], [0.3, 0.7]])
    assert choose_reference(probabilities, 2).tolist() == [1, 0]


@pytest.mark.parametrize("shape", [(1, 3), (5,), (0, 2)])
def test_too_few_candidates_are_refused(shape):
    with pytest.raises(InputError, match="at least 2 images"):
        choose_reference(np.ones(shape))


def test_large_images_make_a_smaller_set():
    assert affordable(28, 1) == 64
    assert affordable(320, 3) == 54
    assert affordable(320, 3, 400) * 3 * 320 * 320 <= 2**24
