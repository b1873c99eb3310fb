"""An ONNX file that takes a table's own columns: the encoding as ordinary operators in front of the network.

Every column is an input of its own, by its name, of shape [batch, 1]: float64 for numbers, NaN for a missing one, and
strings for words. A word is compared as it is: surrounding spaces, which a CSV reader drops, are the caller's part.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from terrine.data.encoding import Encoding
from terrine.deployment.export import TOLERANCE, onnx_session
from terrine.deployment.rows import TableStudent
from terrine.errors import ArtefactError

if TYPE_CHECKING:
    import onnx
    import pandas as pd

_STUDENT = "student/"
_FEATURES = "encoding/features"


def write_raw_columns(path: Path, encoding: Encoding, metadata: Mapping[str, str]) -> None:
    """Put the encoding in front of the network in the ONNX file `path`, whose input is encoded rows called `images`.

    metadata: texts that the file carries in place of what it says of the network's input.
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
    """Return the largest difference of a probability between the file and the student on `rows`.

    Raises ArtefactError, and removes the file, where it is more than rounding.
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
    """Return a data frame's columns as the file takes them, each [rows, 1]."""
    return {
        column.name: rows[column.name].to_numpy(np.float64 if column.values is None else object)[:, None]
        for column in encoding.columns
    }


def _encoder(encoding: Encoding, network: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model from raw columns to encoded rows, float32 [batch, features]."""
    from onnx import TensorProto, helper, numpy_helper

    inputs, nodes, parts = [], [], []
    constants = {"encoding/zero": np.zeros(1), "encoding/one": np.ones(1, np.int64)}
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
        constants |= {
            f"{own}/mean": np.array([column.mean], np.float64),
            f"{own}/deviation": np.array([column.deviation], np.float64),
        }
        nodes += [
            helper.make_node("Sub", [column.name, f"{own}/mean"], [f"{own}/centred"]),
            helper.make_node("Div", [f"{own}/centred", f"{own}/deviation"], [f"{own}/scaled"]),
            helper.make_node("IsNaN", [f"{own}/scaled"], [f"{own}/missing"]),
            helper.make_node("Where", [f"{own}/missing", "encoding/zero", f"{own}/scaled"], [f"{own}/filled"]),
            helper.make_node("Cast", [f"{own}/filled"], [parts[-1]], to=TensorProto.FLOAT),
        ]
    nodes.append(helper.make_node("Concat", parts, [_FEATURES], axis=1))
    output = helper.make_tensor_value_info(_FEATURES, TensorProto.FLOAT, ["batch", len(encoding.names)])
    initialisers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "encoding", inputs, [output], initialisers)
    versions = [*(v for v in network.opset_import if v.domain != "ai.onnx.ml"), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=versions, ir_version=network.ir_version)
