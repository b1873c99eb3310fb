"""Fuzz each entry point with ten thousand inputs, mutated at random from valid ones with a fixed seed.

    make fuzz            (python -m benchmarks.fuzz [--count 10000] [--seed 0] [--doors NAME ...])

An entry point (`door` in the code) takes bytes and either accepts them or raises a TerrineError (over HTTP, a 4xx). Any
other exception is a traceback, and so is a 5xx. The table has a row for each entry point: inputs accepted and refused,
tracebacks (their kinds below the table), the largest growth of the process's memory, and seconds. The exit status is 1
after a traceback, or if memory grew by more than `--megabytes` after the first hundred inputs of an entry point.
"""

import contextlib
import gzip
import io
import json
import logging
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pydicom
import yaml

from benchmarks.cells import common_options, heading, row
from terrine.errors import TerrineError

ROOT = Path(__file__).resolve().parents[1]
TOKENS = [
    b"", b"\\", b"\0", b"\xff" * 8, b"-1", b"0", b"1e999", b"9" * 400, b"9" * 5000, b"NaN", b"null", b"true", b"{",
    b"}", b'"\\ud800"', b"[" * 2000, b"'", b'"', b",", b":", b"\n", b"\r\n\r\n", b"PK\x03\x04", b"\x93NUMPY",
    b"|V2147483647", b"(1" + b"0" * 400 + b",)", b"[/red]", b"!!python/object:os.system", b"&a [*a]", b"../../etc",
    b"\xed\xa0\x80",
]  # fmt: skip

Door = Callable[[bytes], None]


class Refused(TerrineError):
    """A 4xx."""


def mutated(seed: bytes, others: list[bytes], generator: np.random.Generator) -> bytes:
    """One to five changes at random places: bits, bytes, cuts, doublings, tokens, and pieces of another good input."""
    data = bytearray(seed)
    for _ in range(int(generator.integers(1, 6))):
        place = int(generator.integers(0, len(data) + 1))
        length = int(2 ** generator.integers(0, 9))
        match int(generator.integers(0, 7)):
            case 0 if data:
                data[min(place, len(data) - 1)] ^= 1 << int(generator.integers(0, 8))
            case 1:
                data[place : place + length] = generator.bytes(length)
            case 2:
                del data[place : place + length]
            case 3:
                data[place:place] = data[place : place + length]
            case 4:
                data[place:place] = TOKENS[generator.integers(0, len(TOKENS))]
            case 5:
                data[place : place + length] = TOKENS[generator.integers(0, len(TOKENS))]
            case _:
                other = others[generator.integers(0, len(others))]
                start = int(generator.integers(0, len(other) + 1))
                data[place : place + length] = other[start : start + length]
    return bytes(data)


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _npz(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def _png() -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(np.arange(144, dtype=np.uint8).reshape(12, 12)).save(stream, "png")
    return stream.getvalue()


def http_doors(folder: Path) -> Iterator[tuple[str, Door, list[bytes]]]:
    """The bodies of each type that a service takes."""
    from starlette.testclient import TestClient

    from tasks.serving.service import build_app
    from tests.student_folders import images, make_student, make_table_student

    batch = images(2)
    floats = (batch / np.float32(255)).tolist()
    form = b'--x\r\nContent-Disposition: form-data; name="a"; filename="b.png"\r\n\r\n' + _png() + b"\r\n--x--\r\n"
    row = {"age": 40, "work": "Private", "gain": 3}
    bodies = {
        "npy": ("/images", "application/x-npy", [_npy(batch), _npy(batch / np.float32(255))]),
        "image": ("/images", "image/png", [_png()]),
        "form": ("/images", "multipart/form-data; boundary=x", [form]),
        "JSON": ("/invocations", "application/json", [json.dumps({"inputs": floats}).encode()]),
        "CSV": ("/rows", "text/csv", [b'age,work,gain\n40,Private,3\n,"State-gov",4\n']),
        "JSON of rows": ("/invocations", "application/json", [json.dumps({"dataframe_records": [row]}).encode()]),
    }
    made = [make_student(folder / "images"), make_table_student(folder / "rows")]
    clients = [TestClient(build_app(student)[0], raise_server_exceptions=False) for student in made]
    for name, (path, content, seeds) in bodies.items():
        client = clients["CSV" in name or "rows" in name]

        def door(body: bytes, client=client, path=path, content=content) -> None:
            answer = client.post(path, content=body, headers={"content-type": content})
            if answer.status_code >= 500:
                raise RuntimeError(f"{answer.status_code}: {answer.text[:200]}")
            if answer.status_code >= 400:
                raise Refused(answer.json()["message"])

        yield f"HTTP, {name}", door, seeds


def party_doors() -> Iterator[tuple[str, Door, list[bytes]]]:
    """Entry points for data that parties send to the services: reports, and signed requests of any content."""
    import pytest

    from tasks.parties.client import RefusalError
    from terrine.collaboration.protocol.agreement import ProtocolError
    from terrine.collaboration.protocol.report import check_report
    from tests.collaboration_sessions import agreement, random_votes, reports_of
    from tests.party_trials import Site, given, terms_of, trial
    from tests.tasks.parties.test_services import PATHS, signed

    agreed = agreement()
    report = reports_of(agreed, random_votes(agreed))["north"][1]

    def check(data: bytes) -> None:
        try:
            check_report(agreed, "north", data, second=True)
        except ProtocolError as error:
            raise Refused(str(error)) from error

    yield "reports of parties", check, [report]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        terms, votes = trial(Path(folder), terms_of())
        site = Site(Path(folder), terms, given(terms, votes), patch)
        for name in terms.teachers:
            site.submit(name)
        for receiver, caller in (("student", "party-1"), ("guardian", "student")):

            def request(data: bytes, receiver: str = receiver, caller: str = caller) -> None:
                path = PATHS[sum(data[:8]) % len(PATHS)].format(len(data))
                if "close" not in path and path != "done":
                    method = ("GET", "PUT", "POST")[len(data) % 3]
                    try:
                        site.request(*signed(site, caller, receiver, method, path, data))
                    except RefusalError as error:
                        if error.status >= 500:
                            raise RuntimeError(f"{error.status}: {error}") from error
                        raise Refused(str(error)) from error

            yield f"requests to the {receiver}'s service", request, [report, b"[]", b'{"party-1": ["00", [1, 2, 3]]}']


def file_doors(folder: Path) -> Iterator[tuple[str, Door, list[bytes]]]:
    """Files that people bring."""
    from tasks.config.params import merge_overrides, parse_assignment, read_parameters, validate
    from tasks.config.presets import resolve, selected_run
    from tasks.config.values import read_yaml
    from tasks.parties.config import read_party
    from tasks.tools.vote_files import read_answered, read_histograms
    from terrine.data.csv_file import read_csv
    from terrine.data.image_files import read_images
    from terrine.data.sources.npz import Npz

    def of_file(name: str, read: Callable[[Path], object]) -> Door:
        path = folder / name

        def door(data: bytes) -> None:
            path.write_bytes(data)
            read(path)

        return door

    generator = np.random.default_rng(0)
    votes = generator.integers(0, 5, (30, 9))
    yield "votes files", of_file("votes.npy", lambda path: read_histograms(path, classes=5)), [_npy(votes)]
    answered = [_npy(np.ones(30, bool)), _npy(votes[:, 0] - 1)]
    yield "files of answers", of_file("answered.npy", lambda path: read_answered(path, 30)), answered
    images = generator.integers(0, 255, (40, 8, 8)).astype(np.uint8)
    data = _npz(images=images, labels=np.arange(40) % 4)
    yield "npz data", of_file("data.npz", lambda path: Npz(path=path).read()), [data]
    yield (
        "CSV files",
        of_file("rows.csv", read_csv),
        [b"age,work\n1,a\n2,b\n", b'\xef\xbb\xbf"a","b"\r\n"1","x\ny"\r\n'],
    )
    yield "image files", of_file("image.png", lambda path: read_images([path], size=8, channels=1)), [_png()]
    plain = (ROOT / "params.yaml").read_bytes()
    presets = [path.read_bytes() for path in sorted((ROOT / "experiments").rglob("*.yaml"))[:4]]
    overrides = of_file(
        "preset.yaml", lambda path: validate(merge_overrides({}, read_yaml(path).get("overrides") or {}))
    )
    yield "presets", overrides, presets
    (folder / "experiments").symlink_to(ROOT / "experiments")
    yield "params.yaml", of_file("params.yaml", lambda path: resolve(folder, selected_run(folder))), [plain]
    whole = yaml.safe_dump(validate({}).model_dump(mode="json")).encode()
    yield "parameters of a run", of_file("parameters.yaml", read_parameters), [whole]
    texts = [
        b"aggregation.sigma=40",
        b"partition.teachers=100",
        b"data={name: digits}",
        b"seed=1",
        b"student.kind=linear",
    ]

    def assignment(text: bytes) -> None:
        validate(merge_overrides({}, parse_assignment(text.decode(errors="surrogateescape"))))

    yield "CLI values (--set)", assignment, texts
    terms = {
        "teachers": {"one": 2, "two": 2}, "minimum": 3, "queries": 5, "queried": 5, "queries_digest": "a" * 64,
        "query_shards": ["b" * 64], "backbone": "c" * 64, "class_names": ["a", "b", "c", "d"],
        "size": 28, "channels": 1, "mechanism": "gnmax", "sigma": 4.0, "epsilon": 8.0, "delta": 1e-5, "unit": "record",
    }  # fmt: skip
    terms["keys"] = {name: f"ed25519:{place:064x}" for place, name in enumerate(["guardian", "student", "one", "two"])}
    terms["services"] = {role: {"url": "https://a:1"} for role in ("guardian", "student")}
    party = {"role": "teacher", "own": {"params": {"privacy": {"unit": "record"}}}, "terms": terms}
    yield "party.yaml", of_file("party.yaml", read_party), [yaml.safe_dump(party).encode()]


def medical_doors(folder: Path) -> Iterator[tuple[str, Door, list[bytes]]]:
    """Files of scanners, by the functions that read one: what calls them makes a sentence of any error."""
    import nibabel

    from terrine.data import dicom_images
    from terrine.data.image_files import fitted
    from terrine.data.sources import nifti
    from tests.terrine.data.dicoms import REAL, made

    folder.mkdir()
    generator = np.random.default_rng(0)
    warnings.simplefilter("ignore")  # pydicom warns about invalid values

    def written(dataset: "pydicom.FileDataset") -> bytes:
        dataset.save_as(stream := io.BytesIO(), enforce_file_format=True)
        return stream.getvalue()

    def scan(data: bytes) -> None:
        (folder / "IM1").write_bytes(data)
        fitted(dicom_images.picture_at(folder / "IM1", None, None)[0], 8, 1, "pad")

    slices = generator.integers(0, 4000, (3, 12, 9), np.uint16)
    plain = [written(made(slices[0], RescaleSlope=1, RescaleIntercept=-1024)), written(made(slices))]
    real = [(REAL / f"MR_small{kind}.dcm").read_bytes() for kind in ("", "_RLE", "_jp2klossless", "_jpeg_ls_lossless")]
    yield "DICOM files", scan, [*plain, *real]

    def volume(name: str, data: bytes) -> None:
        (folder / name).write_bytes(data)
        fitted(nifti.read_slice(folder / name, "axial", "middle", None, (1.0, 99.0))[0], 8, 1, "pad")

    voxels = generator.integers(0, 999, (7, 6, 5)).astype(np.int16)
    whole = [kind(voxels, np.diag([2, 2, 2, 1])).to_bytes() for kind in (nibabel.Nifti1Image, nibabel.Nifti2Image)]
    yield "NIfTI files", lambda data: volume("a.nii", data), whole
    yield "NIfTI files, gzipped", lambda data: volume("a.nii.gz", gzip.compress(data, 1)), whole
    gzipped = [gzip.compress(content, 6, mtime=0) for content in whole]
    yield "NIfTI files, gzip itself", lambda data: volume("a.nii.gz", data), gzipped


def student_doors(folder: Path) -> Iterator[tuple[str, Door, list[bytes]]]:
    """Files of a student's folder, changed under a seal that fits."""
    from tasks.serving.pages import guarantee
    from terrine.deployment.manifest import MANIFEST, seal
    from terrine.deployment.model import StudentModel
    from terrine.deployment.rows import TableStudent
    from tests.student_folders import images, make_statement, make_student, make_table_student

    student, table = make_student(folder / "student"), make_table_student(folder / "table" / "student")
    batch, rows = images(1), pd.DataFrame([{"age": 40, "work": "Private", "gain": 3}])

    def answer_rows(home: Path) -> None:
        TableStudent.load(home).answers(rows)

    def of(home: Path, name: str, use: Callable[[Path], object]) -> tuple[Door, list[bytes]]:
        whole = (home / name).read_bytes()
        manifest = (home / MANIFEST).read_bytes()

        def door(data: bytes) -> None:
            (home / name).write_bytes(data)
            if name != MANIFEST:
                (home / MANIFEST).write_text(json.dumps(seal(home, json.loads(manifest))))
            else:
                with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):
                    (home / MANIFEST).write_text(json.dumps(seal(home, json.loads(data))))
            try:
                use(home)
            finally:
                (home / name).write_bytes(whole)
                (home / MANIFEST).write_bytes(manifest)

        return door, [whole]

    for name in ("head.safetensors", "backbone.safetensors", "reference.safetensors", MANIFEST):
        yield f"student: {name}", *of(student, name, lambda home: StudentModel.load(home).predict(batch))
    yield "student: encoding.json", *of(table, "encoding.json", answer_rows)
    make_statement(student)
    statement = student.parent / "privacy.json"

    def told(data: bytes) -> None:
        statement.write_bytes(data)
        guarantee(student)

    yield "student: privacy.json", told, [statement.read_bytes()]


def attend(name: str, door: Door, seeds: list[bytes], count: int, seed: int) -> tuple[dict[str, float], Counter[str]]:
    """Pass `count` inputs to an entry point; return the figures of its row, and its tracebacks by kind."""
    generator = np.random.default_rng([seed, *name.encode()])
    process, found, faults = psutil.Process(), Counter(), Counter()
    base = most = 0
    start = time.monotonic()
    for number in range(count):
        data = mutated(seeds[number % len(seeds)], seeds, generator)
        try:
            door(data)
            found["taken"] += 1
        except TerrineError:
            found["refused"] += 1
        except Exception as error:
            found["tracebacks"] += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            faults[f"{type(error).__name__}: {str(error)[:120]!a} ({Path(where.filename).name}:{where.lineno})"] += 1
        if number % 100 == 99:
            used = process.memory_info().rss
            base = base or used
            most = max(most, used - base)
    figures = {**found, "megabytes": most / 1e6, "seconds": time.monotonic() - start}
    return figures, faults


def main() -> None:
    parser = common_options(__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--megabytes", type=float, default=200.0)
    parser.add_argument("--doors", nargs="+", default=[""], help="parts of the names of doors")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    heading("door", "inputs", "taken", "refused", "tracebacks", "memory, MB", "seconds")
    bad, told = False, []
    with tempfile.TemporaryDirectory(prefix="terrine-fuzz-") as place:
        folder = Path(place)
        groups = (
            party_doors(),
            file_doors(folder),
            medical_doors(folder / "scans"),
            student_doors(folder / "students"),
            http_doors(folder / "http"),
        )
        for name, door, seeds in (entry for group in groups for entry in group):
            if not any(part in name for part in arguments.doors):
                continue
            figures, faults = attend(name, door, seeds, arguments.count, arguments.seed)
            cells = [f"{figures.get(part, 0):,}" for part in ("taken", "refused", "tracebacks")]
            row(name, f"{arguments.count:,}", *cells, f"{figures['megabytes']:.0f}", f"{figures['seconds']:.0f}")
            bad |= bool(faults) or figures["megabytes"] > arguments.megabytes
            told += [f"{name}: {count} x {fault}" for fault, count in faults.most_common(5)]
    print("\n".join(["", *told]))
    sys.exit(bad)


if __name__ == "__main__":
    main()
