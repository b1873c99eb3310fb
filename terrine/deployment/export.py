"""Export of students as ONNX and as PyTorch programs (.pt2), which run without Terrine.

Both contain all steps from uint8 images to probabilities, for batches of any size (`current` statistics: at least two
images, and one call is one batch). Every export is compared with the student.

.pt2 files contain example inputs and weights pickled by torch.export: load only trusted ones. ONNX files contain only
operators. Terrine loads either only to compare what it has just written.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from terrine.data.encoding import Encoding
from terrine.deployment.model import StudentModel
from terrine.deployment.rows import TableStudent
from terrine.errors import ArtefactError, SettingError, first_line
from terrine.extras import from_extra
from terrine.logs import hushed

if TYPE_CHECKING:
    import onnx
    import pandas as pd

Format = Literal["onnx", "pt2"]
FORMATS: tuple[Format, ...] = ("onnx", "pt2")

TOLERANCE = 1e-4
"""Largest accepted difference of a probability; other kernels sum in a different order."""

_TRACED = 3
_CHECKED = (2, 5, 16)
_STUDENT, _FEATURES = "student/", "encoding/features"


def export_student(
    model: StudentModel, paths: Sequence[Path], images: np.ndarray, *, metadata: Mapping[str, str] | None = None
) -> list[float]:
    """Write the student's network to files; return the largest difference of each from the student's outputs.

    The input is `images`, uint8, the output `probabilities`, float32; the first axis of both is `batch`. Files that
    fail the comparison are removed.

    Args:
        model: The student.
        paths: Files to write, .onnx or .pt2.
        images: Images for the comparison, uint8 [N, C, size, size], N >= 16, in batches of 1 (except with `current`
            statistics), 2, 5 and 16.
        metadata: Further metadata of ONNX files, in addition to `onnx_metadata`.

    Raises:
        SettingError: A file has an unsupported suffix.
        MissingExtraError: A package for the export is not installed.
        ArtefactError: The network cannot be exported, or a file differs by more than `TOLERANCE`.
    """
    for path in paths:
        if path.suffix.removeprefix(".") not in FORMATS:
            raise SettingError(f"{path}: students are exported as {' or '.join(FORMATS)}. End the file's name so.")
    program = exported_program(model)
    texts = onnx_metadata(model) | dict(metadata or {})
    return [_write(model, program, path, images, texts) for path in paths]


def onnx_metadata(model: StudentModel) -> dict[str, str]:
    """Return metadata of an ONNX file about the student: values as text, lists as JSON."""
    return {
        "class_names": json.dumps(model.class_names, ensure_ascii=False),
        "statistics": model.statistics,
        "input_shape": json.dumps(["batch", *model.shape]),
        "input_dtype": "float32" if model.takes_rows else "uint8",
        "input_range": "any finite number" if model.takes_rows else "0 to 255",
        "student_sha256": json.dumps(model.description["digests"]),
        **({"probabilities": "of each finding separately"} if model.findings else {}),
        **({} if model.scale is None else {"scale": json.dumps(model.scale.describe())}),
    }


def _write(
    model: StudentModel, program: torch.export.ExportedProgram, path: Path, images: np.ndarray, metadata: dict[str, str]
) -> float:
    temporary = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        if path.suffix == ".onnx":
            _write_onnx(program, temporary, metadata)
        else:
            torch.export.save(program, temporary)
        difference = _largest_difference(model, temporary, images)
        if not difference <= TOLERANCE:
            raise ArtefactError(
                f"{path.name} differs from the student by up to {difference:.2g} in a probability, so it was not "
                "written. Please report this with the backbone's kind and the versions of torch and onnxruntime."
            )
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return difference


def exported_program(model: StudentModel) -> torch.export.ExportedProgram:
    """Return the student's network as torch exports it, on the CPU, for batches of any size.

    Raises:
        ArtefactError: The architecture cannot be exported.
    """
    dtype = torch.float32 if model.takes_rows else torch.uint8
    example = torch.zeros((_TRACED, *model.shape), dtype=dtype)
    least = 2 if model.statistics == "current" else 1
    network = model.network if model.device.type == "cpu" else model.network.cpu()
    try:
        with _quiet():
            program = torch.export.export(
                network, (example,), dynamic_shapes={"images": {0: torch.export.Dim("batch", min=least)}}
            )
    except Exception as error:  # torch.export raises errors of many kinds, most of them undocumented
        reason = first_line(error)
        raise ArtefactError(f"This student's network cannot be exported: {reason}") from error
    finally:
        model.network.to(model.device)
    graphs = [part.graph for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes):
        node.meta.pop("stack_trace", None)  # contains local paths
    return program


def _write_onnx(program: torch.export.ExportedProgram, path: Path, metadata: dict[str, str]) -> None:
    with from_extra("onnx", "ONNX files"):
        import onnxscript  # noqa: F401  # torch needs it and says so only deep inside
    try:
        with _quiet():
            result = torch.onnx.export(
                program,
                dynamo=True,
                input_names=["images"],
                output_names=["probabilities"],
                external_data=False,
                optimize=False,  # onnxruntime does that itself, in less time
                verbose=False,
            )
            assert result is not None
            path.write_bytes(_described(result.model_proto, metadata).SerializeToString())
    except Exception as error:  # as above
        reason = first_line(error)
        raise ArtefactError(f"This student's network cannot be written as ONNX: {reason}") from error


def _described(proto: Any, metadata: Mapping[str, str]) -> Any:
    """Add metadata to an ONNX model, name its batch axis, and remove torch's notes, which contain local paths."""
    graph = proto.graph
    for node in (*graph.node, *(node for function in proto.functions for node in function.node)):
        del node.metadata_props[:]
    symbol = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output, *graph.value_info):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_param = re.sub(rf"\b{re.escape(symbol)}\b", "batch", axis.dim_param)
    for name, text in metadata.items():
        proto.metadata_props.add(key=name, value=text)
    return proto


def _largest_difference(model: StudentModel, path: Path, images: np.ndarray) -> float:
    sizes = _CHECKED if model.statistics == "current" else (1, *_CHECKED)
    if len(images) < max(sizes):
        raise ValueError(f"{len(images)} images to compare on; at least {max(sizes)} are needed")
    answer = _exported_module(path)
    network = model.network
    differences = []
    for size in sizes:
        batch = np.ascontiguousarray(images[:size])
        with torch.no_grad():
            expected = network(torch.from_numpy(batch).to(model.device)).cpu().numpy()
        differences.append(np.abs(answer(batch) - expected).max())
    return float(max(differences))


def onnx_session(path: Path) -> Any:
    """Load an ONNX file with onnxruntime, without its warnings about the graph."""
    with from_extra("onnx", "ONNX files"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _exported_module(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function that an exported file computes."""
    if path.suffix == ".onnx":
        session = onnx_session(path)
        return lambda batch: session.run(None, {"images": batch})[0]
    module = torch.export.load(path).module()

    def answer(batch: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return module(torch.from_numpy(batch)).numpy()

    return answer


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress output and warnings of the exporters."""
    with hushed("torch.onnx"), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def write_raw_columns(path: Path, encoding: Encoding, metadata: Mapping[str, str]) -> None:
    """Insert the encoding before the network in an ONNX file.

    Every column becomes an input with its name, [batch, 1]: float64 for numbers (NaN if missing), strings for words.
    Words are compared exactly; callers strip spaces, as a CSV reader does.

    Args:
        path: The ONNX file, whose input consists of encoded rows.
        encoding: The encoding.
        metadata: Metadata that replaces the file's.
    """
    import onnx
    from onnx import compose

    network = onnx.load(path)
    network = compose.add_prefix(network, _STUDENT, rename_outputs=False)
    joined = compose.merge_models(_encoder(encoding, network), network, [(_FEATURES, f"{_STUDENT}images")])
    del joined.metadata_props[:]
    for name, text in metadata.items():
        joined.metadata_props.add(key=name, value=text)
    onnx.checker.check_model(joined)
    onnx.save(joined, path)


def check_against_student(path: Path, student: TableStudent, rows: pd.DataFrame) -> float:
    """Return the largest difference of a probability between an ONNX file and the student on `rows`.

    Raises:
        ArtefactError: The difference exceeds `TOLERANCE`; the file is removed.
    """
    session = onnx_session(path)
    difference = float(np.abs(session.run(None, onnx_inputs(student.encoding, rows))[0] - student.predict(rows)).max())
    if not difference <= TOLERANCE:
        path.unlink()
        raise ArtefactError(
            f"{path.name} differs from the student by up to {difference:.2g} in a probability, so it was not written. "
            "Please report this with the versions of torch and onnxruntime."
        )
    return difference


def onnx_inputs(encoding: Encoding, rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the inputs of the ONNX file for a data frame, each [rows, 1]."""
    return {
        column.name: rows[column.name].to_numpy(np.float64 if column.values is None else object)[:, None]
        for column in encoding.columns
    }


def _encoder(encoding: Encoding, network: onnx.ModelProto) -> onnx.ModelProto:
    """Return the ONNX model from columns to encoded rows, float32 [batch, features]."""
    from onnx import TensorProto, helper, numpy_helper

    inputs, nodes, parts = [], [], []
    constants: dict[str, np.ndarray] = {"encoding/zero": np.zeros(1), "encoding/one": np.ones(1, np.int64)}
    for number, column in enumerate(encoding.columns):
        own = f"encoding/{number}"
        kind = TensorProto.STRING if column.values is not None else TensorProto.DOUBLE
        inputs.append(helper.make_tensor_value_info(column.name, kind, ["batch", 1]))
        parts.append(f"{own}/part")
        if column.values is not None:
            nodes += [
                helper.make_node(
                    "OneHotEncoder",
                    [column.name],
                    [f"{own}/words"],
                    domain="ai.onnx.ml",
                    cats_strings=list(column.values),
                    zeros=1,
                ),
                helper.make_node("Squeeze", [f"{own}/words", "encoding/one"], [parts[-1]]),
            ]
            continue
        # A hat is the smaller of two lines, to the left and to the right of its knot, and at least 0.
        knots = np.array(column.knots)
        rise = np.concatenate([[0.0], 1 / np.diff(knots)])
        fall = np.concatenate([1 / np.diff(knots), [0.0]])
        lines = {
            "rise": rise,
            "left": np.concatenate([[1.0], -knots[:-1] * rise[1:]]),
            "fall": -fall,
            "right": np.concatenate([knots[1:] * fall[:-1], [1.0]]),
        }
        constants |= {f"{own}/{name}": value for name, value in lines.items()}
        constants |= {f"{own}/lowest": knots[0], f"{own}/highest": knots[-1]}
        steps = [
            ("Clip", [column.name, f"{own}/lowest", f"{own}/highest"], "inside"),
            ("Mul", [f"{own}/inside", f"{own}/rise"], "rising"),
            ("Add", [f"{own}/rising", f"{own}/left"], "from left"),
            ("Mul", [f"{own}/inside", f"{own}/fall"], "falling"),
            ("Add", [f"{own}/falling", f"{own}/right"], "from right"),
            ("Min", [f"{own}/from left", f"{own}/from right"], "lower"),
            ("Max", [f"{own}/lower", "encoding/zero"], "hats"),
            ("IsNaN", [column.name], "missing"),
            ("Where", [f"{own}/missing", "encoding/zero", f"{own}/hats"], "filled"),
        ]
        nodes += [helper.make_node(operator, given, [f"{own}/{name}"]) for operator, given, name in steps]
        nodes.append(helper.make_node("Cast", [f"{own}/filled"], [parts[-1]], to=TensorProto.FLOAT))
    nodes.append(helper.make_node("Concat", parts, [_FEATURES], axis=1))
    output = helper.make_tensor_value_info(_FEATURES, TensorProto.FLOAT, ["batch", len(encoding.names)])
    initialisers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "encoding", inputs, [output], initialisers)
    versions = [*(v for v in network.opset_import if v.domain != "ai.onnx.ml"), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=versions, ir_version=network.ir_version)
