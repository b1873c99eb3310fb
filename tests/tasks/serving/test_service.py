"""The web service: one image and five hundred are answered, everything else gets a 4xx and a sentence."""

import asyncio
import io
import json
import re
import socket
import threading
import time
import urllib.request

import numpy as np
import pytest
import uvicorn
from PIL import Image
from starlette.testclient import TestClient

from tasks.serving import middleware
from tasks.serving.service import build_app, server_config, service
from terrine.deployment.manifest import seal
from terrine.errors import ArtefactError
from tests.student_folders import CLASSES, SIZE, images, make_statement, make_student

MOST = 2_000_000
FORM = {"content-type": "multipart/form-data; boundary=x"}
JSON = {"content-type": "application/json"}
NPY = {"content-type": "application/x-npy"}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = make_student(tmp_path_factory.mktemp("served") / "student")
    make_statement(folder)
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
        answers = few.json()["predictions"]
        assert [row["class"] for row in answers] == answer.json()["labels"]
        np.testing.assert_allclose([row["probability of class 2"] for row in answers], expected[:, 2], atol=1e-6)


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
    assert answer["privacy"]["epsilon"] == client.get("/model").json()["privacy"]["epsilon"] > 1
    assert len(answer["privacy"]["statement_sha256"]) == 64


def test_of_a_form_with_a_damaged_file_the_others_are_answered_and_it_is_named(served):
    client, model = served
    encoded = [as_png(pixels[0]) for pixels in images(3)]
    encoded[1] = encoded[1][:-80]
    files = [("files", (f"{number}.png", data, "image/png")) for number, data in enumerate(encoded)]
    answer = client.post("/images", files=files)
    assert answer.status_code == 200
    np.testing.assert_allclose(answer.json()["predictions"], model.predict(images(3)[[0, 2]]), atol=1e-6)
    assert answer.json()["files"] == ["0.png", "2.png"]
    assert len(answer.json()["labels"]) == 2
    (refused,) = answer.json()["refused"]
    assert refused["place"] == 1
    assert refused["message"].startswith("1.png: The image is damaged: ")


def test_pages_load_nothing_from_elsewhere_and_name_every_route(served):
    client, _ = served
    front, docs = client.get("/"), client.get("/docs")
    for page in (front, docs):
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert not re.search(r"(src|href|url)\s*[=(]\s*.?(https?:)?//", page.text)
    assert "Differentially private" in front.text
    document = client.get("/openapi.json").json()
    assert document["info"]["title"] == "clinic"
    assert set(document["paths"]) == {"/invocations", "/images", "/model", "/metrics", "/ping", "/health", "/version"}
    for path, methods in document["paths"].items():
        assert f"<code>{path}</code>" in docs.text
        for route in methods.values():
            assert {"200", "4XX"} <= set(route["responses"])
    assert set(document["paths"]["/images"]["post"]["requestBody"]["content"]) == {
        "multipart/form-data", "image/*", "application/x-npy",
    }  # fmt: skip
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


def npy_header(kind, shape, text="{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}\n"):
    header = text.format(kind, shape).encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


REFUSED = {
    "zip magic": ("/images", b"PK\x03\x04" + bytes(99), NPY, 400, "numpy.save"),
    "empty zip": ("/images", b"PK\x05\x06" + bytes(18), NPY, 400, "numpy.save"),
    "claims terabytes": ("/images", npy_header("|u1", "(1000000000000, 1, 12, 12)") + b"0", NPY, 400, "not the size"),
    "claims bytes of a type": ("/images", npy_header("|V2147483647", "(1, 1, 12, 12)"), NPY, 400, "numpy.save"),
    "shape of 10^400": ("/images", npy_header("|u1", f"(1{'0' * 400}, 1, 12, 12)"), NPY, 400, "not the size"),
    "no images of 10^400": ("/images", npy_header("|u1", f"(0, 1{'0' * 400})"), NPY, 400, "numpy.save"),
    "deep header": ("/images", npy_header("", "(" * 5000), NPY, 400, "numpy.save"),
    "integer of 10,000 digits": ("/invocations", f'{{"inputs": [{"9" * 10_000}]}}', JSON, 400, "parsing the body"),
    "half a surrogate pair": (
        "/invocations", '{"inputs": "\\ud800", "params": {"\\ud800": 1}}', JSON, 400, "[images, 1, 12, 12]",
    ),
    "malformed image": ("/images", as_png(ONE[0, 0])[:-80], {"content-type": "image/png"}, 400, "damaged"),
    "no image": ("/images", b"hello", {"content-type": "image/jpeg"}, 400, "not an image"),
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
        "b.png: The image is not an image",
    ),
    "large form": ("/images", b"0" * 50_000_000, FORM, 413, "larger than 2 MB"),
    "other type": ("/images", b"hello", {"content-type": "text/plain"}, 415, "application/x-npy"),
    "no type": ("/images", b"hello", {}, 415, "application/x-npy"),
    "large npy": ("/images", b"0" * 50_000_000, NPY, 413, "larger than 2 MB"),
    "large JSON": ("/invocations", b"0" * 50_000_000, JSON, 413, "larger than 2 MB"),
    "JSON shape": ("/invocations", as_json(floats(ONE)[:, :, :5]), JSON, 400, "0.0: List should have at least 12"),
    "JSON range": ("/invocations", as_json(ONE), JSON, 400, "less than or equal to 1"),
    "JSON NaN": ("/invocations", as_json(floats(ONE) * np.nan), JSON, 400, "finite number"),
    "JSON text": ("/invocations", as_json([[["a"]]]), JSON, 400, "should be a valid list"),
    "JSON ragged": ("/invocations", as_json([[1, 2], [3]]), JSON, 400, "should be a valid list"),
    "JSON null": ("/invocations", json.dumps({"inputs": None}), JSON, 400, "[images, 1, 12, 12]"),
    "JSON cut": ("/invocations", '{"inputs": [[', JSON, 400, "JSON decode error"),
    "JSON deep": ("/invocations", "[" * 100_000, JSON, 400, "error parsing the body"),
    "JSON list": ("/invocations", "[1, 2]", JSON, 400, "with exactly one of the fields inputs, instances"),
    "JSON other": ("/invocations", '{"pictures": 1}', JSON, 400, "with exactly one of the fields inputs, instances"),
    "no UTF-8": ("/invocations", b"\xff\xfe", JSON, 400, "JSON decode error"),
    "CSV": ("/invocations", "1,2", {"content-type": "text/csv"}, 415, "application/json"),
    "JSON no type": ("/invocations", "{}", {}, 415, "application/json"),
}  # fmt: skip


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

    class Model:
        size, channels, shape, takes_rows, class_names = SIZE, 1, (1, SIZE, SIZE), False, model.class_names
        statistics, scale = "original", None

        def predict(self, images):
            raise RuntimeError("/secret/path")

    app = service(Model(), {}, most_bytes=MOST)
    answer = TestClient(app, raise_server_exceptions=False).post("/images", content=as_npy(ONE), headers=NPY)
    assert answer.status_code == 500
    assert answer.json()["message"] == "The server failed on this request; its log says why."


def test_with_a_key_everything_but_whether_it_lives_is_for_those_who_show_it(served):
    client = TestClient(service(served[1], served[0].get("/model").json(), most_bytes=MOST, key="a key of sixteen"))
    wrong = [{}, {"authorization": "Bearer no"}, {"authorization": "Basic ?"}, {"authorization": "a key of sixteen"}]
    for headers in wrong:
        for path in ("/", "/model", "/metrics", "/nowhere"):
            answer = client.get(path, headers=headers)
            assert (answer.status_code, answer.json()["error_code"]) == (401, "UNAUTHORIZED")
        assert client.post("/images", content=as_npy(ONE), headers=NPY | headers).status_code == 401
        assert client.get("/ping", headers=headers).status_code == 200
    bearer = {"authorization": "Bearer a key of sixteen"}
    assert client.post("/images", content=as_npy(ONE), headers=NPY | bearer).status_code == 200
    assert client.get("/", auth=("anybody", "a key of sixteen")).status_code == 200


def test_metrics_count_requests_by_route_and_answer(served):
    client, _ = served
    client.get("/nowhere")
    client.post("/images", content=b"hello", headers=NPY)
    client.post("/images", content=bytes(MOST + 1), headers=NPY)
    text = client.get("/metrics").text
    assert 'terrine_http_requests_total{handler="none",method="GET",status="404"}' in text
    assert 'terrine_http_requests_total{handler="/images",method="POST",status="400"}' in text
    assert 'terrine_http_requests_total{handler="/images",method="POST",status="413"}' in text
    assert "nowhere" not in text


def test_a_statement_that_was_edited_or_is_another_students_is_not_told(tmp_path):
    folder = make_student(tmp_path / "student")
    detail = make_statement(folder)
    (tmp_path / "privacy.json").write_text(json.dumps({**detail, "epsilon": 0.1, "epsilon_guaranteed": 0.1}))
    with pytest.raises(ArtefactError, match=r"privacy.json is not what Terrine wrote.*epsilon"):
        build_app(folder)
    (tmp_path / "privacy.json").write_text('{"epsilon": 0.1}')
    with pytest.raises(ArtefactError, match=r"privacy.json is not what Terrine wrote"):
        build_app(folder)
    (tmp_path / "privacy.json").write_text(json.dumps(detail))
    assert build_app(folder)[0] is not None
    for other in ({"release": "02"}, {"release": None}):
        manifest = json.loads((folder / "manifest.json").read_text()) | other
        (folder / "manifest.json").write_text(json.dumps(seal(folder, manifest)))
        with pytest.raises(ArtefactError, match=r"privacy.json is about another release than the student"):
            build_app(folder)


def test_a_server_outlives_half_sent_heads_and_held_bodies(served, monkeypatch):
    """Over real connections: more half-sent requests than it answers at a time; a held body is refused in the end."""
    monkeypatch.setattr(middleware, "BODY_SECONDS", 1.0)
    server = uvicorn.Server(server_config(served[0].app, "127.0.0.1", 0))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    address = server.servers[0].sockets[0].getsockname()
    head = b"POST /images HTTP/1.1\r\nhost: a\r\ncontent-type: application/x-npy\r\ncontent-length: 1000000\r\n\r\n"
    try:
        held = [socket.create_connection(address) for _ in range(80)]
        for connection in held[:64]:
            connection.sendall(b"GET /ping HTTP/1.1\r\nhost: ")
        for connection in held[64:]:
            connection.sendall(head + bytes(200_000))
        assert urllib.request.urlopen(f"http://127.0.0.1:{address[1]}/ping", timeout=60).status == 200
        held[64].settimeout(60)
        assert held[64].recv(20).startswith(b"HTTP/1.1 408")
    finally:
        for connection in held:
            connection.close()
        server.should_exit = True
        thread.join(10)
