"""The web service: one image and five hundred are answered, everything else gets a 4xx and a sentence."""

import asyncio
import io
import json
import re

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from tasks.serving.scoring import scoring_app
from tasks.serving.serve import build_app
from tests.student_folders import CLASSES, SIZE, images, make_student

MOST = 2_000_000
FORM = {"content-type": "multipart/form-data; boundary=x"}
STATEMENT = {
    "run": "clinic", "epsilon": 1.5, "epsilon_guaranteed": 1.5, "delta": 1e-5, "unit": "record", "noise": "secure",
    "private": True, "summary": "These answers are private.",
}  # fmt: skip
JSON = {"content-type": "application/json"}
NPY = {"content-type": "application/x-npy"}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = make_student(tmp_path_factory.mktemp("served") / "student")
    (folder.parent / "privacy.json").write_text(json.dumps(STATEMENT))
    app, model = build_app(folder, most_bytes=MOST)
    return TestClient(app), model


def floats(batch):
    return (batch / np.float32(255)).astype(np.float32)


def as_json(values):
    return json.dumps({"inputs": values if isinstance(values, list) else values.tolist()})


def as_npy(array):
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def as_png(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    return stream.getvalue()


@pytest.mark.parametrize("count", [1, 20, 512])
def test_requests_of_any_size_get_the_models_own_answers(served, count):
    client, model = served
    batch = images(count, seed=count)
    expected = model.predict(batch)
    answer = client.post("/images", content=as_npy(batch), headers=NPY)
    assert answer.status_code == 200
    np.testing.assert_allclose(answer.json()["predictions"], expected, atol=1e-6)
    assert answer.json()["labels"] == [model.class_names[number] for number in expected.argmax(axis=1)]
    few = client.post("/invocations", content=as_json(floats(batch)), headers=JSON)
    assert few.status_code == (200 if count < 512 else 200 if len(as_json(floats(batch))) <= MOST else 413)
    if few.status_code == 200:
        np.testing.assert_allclose(few.json()["predictions"], expected, atol=1e-6)


def test_an_encoded_image_is_resized_and_answered(served):
    client, _ = served
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    answer = client.post("/images", content=as_png(pixels), headers={"content-type": "image/png"})
    assert answer.status_code == 200
    assert np.array(answer.json()["predictions"]).shape == (1, CLASSES)


def test_image_files_of_a_form_are_answered_by_name_with_the_guarantee(served):
    client, model = served
    encoded = [as_png(pixels[0]) for pixels in images(3)]
    files = [("files", (f"{number}.png", data, "image/png")) for number, data in enumerate(encoded)]
    answer = client.post("/images", files=files).json()
    np.testing.assert_allclose(answer["predictions"], model.predict(images(3)), atol=1e-6)
    assert answer["files"] == ["0.png", "1.png", "2.png"]
    assert answer["class_names"] == model.class_names
    assert answer["privacy"]["epsilon"] == 1.5
    assert len(answer["privacy"]["statement_sha256"]) == 64


def test_pages_load_nothing_from_elsewhere_and_name_every_route(served):
    client, _ = served
    front, docs = client.get("/"), client.get("/docs")
    for page in (front, docs):
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert not re.search(r"(src|href|url)\s*[=(]\s*.?(https?:)?//", page.text)
    assert "These answers are private" in front.text
    document = client.get("/openapi.json").json()
    assert document["info"]["title"] == "clinic"
    assert document["info"]["version"]
    routes = {route.path for route in client.app.app.routes if getattr(route, "include_in_schema", False)}
    assert routes == set(document["paths"])
    for path, methods in document["paths"].items():
        assert f"<code>{path}</code>" in docs.text
        for route in methods.values():
            assert route["summary"]
            assert "200" in route["responses"]
    assert set(document["paths"]["/images"]["post"]["requestBody"]["content"]) == {
        "multipart/form-data", "image/*", "application/x-npy",
    }  # fmt: skip
    example = document["paths"]["/images"]["post"]["responses"]["200"]["content"]["application/json"]["example"]
    assert set(example) == set(client.post("/images", content=as_npy(ONE), headers=NPY).json())
    assert client.get("/redoc").status_code == 404


def test_the_service_says_what_it_serves(served):
    client, model = served
    about = client.get("/model").json()
    assert about["class_names"] == model.class_names
    assert about["statistics"] == "original"
    assert about["shape"] == [1, SIZE, SIZE]
    assert set(about["digests"]) == {"backbone.safetensors", "head.safetensors", "reference.safetensors"}
    assert client.get("/ping").status_code == 200


ONE = images(1)
REFUSED = {
    "malformed image": ("/images", as_png(ONE[0, 0])[:-80], {"content-type": "image/png"}, 400, "damaged"),
    "no image": ("/images", b"hello", {"content-type": "image/jpeg"}, 400, "no image"),
    "bomb": ("/images", as_png(np.zeros((6000, 6000), np.uint8)), {"content-type": "image/png"}, 400, "pixels"),
    "no npy": ("/images", b"hello", NPY, 400, "numpy.save"),
    "pickled npy": ("/images", as_npy(np.array([{}])), NPY, 400, "numpy.save"),
    "wrong shape": ("/images", as_npy(ONE[:, :, :5]), NPY, 400, r"shape [1, 1, 5, 12]"),
    "wrong dtype": ("/images", as_npy(ONE.astype(np.int32)), NPY, 400, "dtype int32"),
    "not finite": ("/images", as_npy(floats(ONE) * np.nan), NPY, 400, "NaN in image 0"),
    "empty": ("/images", as_npy(ONE[:0]), NPY, 400, "no image in the batch"),
    "cut form": ("/images", b"--x\r\nhello", FORM, 400, "form cannot be read"),
    "empty form": ("/images", b"--x--\r\n", FORM, 400, "no image file in the form"),
    "damaged in a form": (
        "/images",
        b'--x\r\nContent-Disposition: form-data; name="a"; filename="b.png"\r\n\r\nhello\r\n--x--\r\n',
        FORM,
        400,
        "b.png: The image is no image",
    ),
    "large form": ("/images", b"0" * 50_000_000, FORM, 413, "larger than 2 MB"),
    "other type": ("/images", b"hello", {"content-type": "text/plain"}, 415, "application/x-npy"),
    "no type": ("/images", b"hello", {}, 415, "application/x-npy"),
    "large npy": ("/images", b"0" * 50_000_000, NPY, 413, "larger than 2 MB"),
    "large JSON": ("/invocations", b"0" * 50_000_000, JSON, 413, "larger than 2 MB"),
    "JSON shape": ("/invocations", as_json(floats(ONE)[:, :, :5]), JSON, 400, "(1, 1, 5, 12)"),
    "JSON range": ("/invocations", as_json(ONE), JSON, 400, "must lie in [0, 1]"),
    "JSON NaN": ("/invocations", as_json(floats(ONE) * np.nan), JSON, 400, "NaN in image 0"),
    "JSON text": ("/invocations", as_json([[["a"]]]), JSON, 400, "'a'"),
    "JSON ragged": ("/invocations", as_json([[1, 2], [3]]), JSON, 400, "different lengths"),
    "JSON null": ("/invocations", json.dumps({"inputs": None}), JSON, 400, "[images, 1, 12, 12]"),
    "JSON cut": ("/invocations", '{"inputs": [[', JSON, 400, "not valid JSON"),
    "JSON deep": ("/invocations", "[" * 100_000, JSON, 400, "nested too deeply"),
    "JSON list": ("/invocations", "[1, 2]", JSON, 400, "with the field inputs"),
    "JSON other": ("/invocations", '{"pictures": 1}', JSON, 400, "with the field inputs"),
    "no UTF-8": ("/invocations", b"\xff\xfe", JSON, 400, "not valid JSON"),
    "CSV": ("/invocations", "1,2", {"content-type": "text/csv"}, 415, "application/json"),
    "JSON no type": ("/invocations", "{}", {}, 415, "application/json"),
}


@pytest.mark.parametrize(("path", "body", "headers", "status", "part"), REFUSED.values(), ids=REFUSED)
def test_a_bad_request_gets_a_4xx_and_a_sentence(served, path, body, headers, status, part):
    client, _ = served
    answer = client.post(path, content=body, headers=headers)
    assert answer.status_code == status
    message = answer.json()["message"]
    assert part in message
    assert message.endswith((".", "]"))
    assert len(message) < 800
    assert "Traceback" not in answer.text


def test_the_service_goes_on_after_refusals(served):
    client, model = served
    for path, body, headers, status, _ in list(REFUSED.values())[:4]:
        assert client.post(path, content=body, headers=headers).status_code == status
    answer = client.post("/images", content=as_npy(ONE), headers=NPY)
    np.testing.assert_allclose(answer.json()["predictions"], model.predict(ONE), atol=1e-6)


def test_a_large_body_without_a_declared_length_is_refused_and_not_kept(served):
    """ASGI by hand: parts that come one by one; the application must stop keeping them and read to the end."""
    client, _ = served
    sent, taken = [], 0

    async def receive():
        nonlocal taken
        taken += 1
        return {"type": "http.request", "body": b"0" * 100_000, "more_body": taken < 60}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/images", "headers": [(b"content-type", b"application/x-npy")]}
    asyncio.run(client.app(scope, receive, send))
    assert sent[0]["status"] == 413
    assert taken == 60


def test_a_defect_is_a_500_with_a_sentence_and_no_trace(served):
    _, model = served

    class Broken:
        class metadata:
            get_input_schema = staticmethod(lambda: None)

    class Model:
        size, channels, shape, takes_rows, class_names = SIZE, 1, (1, SIZE, SIZE), False, model.class_names
        statistics = "original"

        def predict(self, images):
            raise RuntimeError("/secret/path")

    app = scoring_app(Broken(), Model(), most_bytes=MOST, about={})
    answer = TestClient(app, raise_server_exceptions=False).post("/images", content=as_npy(ONE), headers=NPY)
    assert answer.status_code == 500
    assert answer.json()["message"] == "The server failed on this request; its log says why."
