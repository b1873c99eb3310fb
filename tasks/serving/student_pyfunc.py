"""The student as an MLflow model, by MLflow's "models from code": this file is copied into the model and run there.

The model's artefacts are the student's sealed folder and its privacy statement. Loading checks every digest, unpickles
nothing, and needs no more of Terrine than the copy that travels with the model. It takes floats in [0, 1], because
MLflow casts what a request holds to the signature's type without a word: with a signature of uint8 every float below 1
would become 0, and NaN too.
"""

from pathlib import Path

import mlflow
import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST
from mlflow.pyfunc import PythonModel, PythonModelContext

from terrine.deployment.model import StudentModel
from terrine.deployment.rows import TableStudent, takes_table
from terrine.device import resolve_device
from terrine.errors import InputError


class PyfuncStudent(PythonModel):
    """Class probabilities, float32 [B, classes], of images, float32 [B, C, size, size] in [0, 1].

    Of classes that have an order, `params={"numbers": True}` asks for what they say together: the number, or mean
    grade, float64 [B]. The student of a table takes a data frame with the table's columns, and returns one: see
    `TableStudent.answers`.

    model_config: `statistics` (null: one under which no answer depends on company), `reference`, the path of a .npy
    file with uint8 images that replace the stored reference images, or null, and `device` (auto, cpu, cuda, mps).
    """

    student: TableStudent | StudentModel

    def load_context(self, context: PythonModelContext) -> None:
        settings = context.model_config or {}
        path = settings.get("reference")
        reference = None if path is None else np.load(path, allow_pickle=False)
        folder = Path(context.artifacts["student"])
        device = resolve_device(settings.get("device") or "cpu")
        if takes_table(folder):
            self.student = TableStudent.load(folder, device=device)
            return
        self.student = StudentModel.load(folder, settings.get("statistics"), reference=reference, device=device)

    # MLflow warns of an argument without annotation, and of annotations other than one of its own choice.
    def predict(self, context, model_input: np.ndarray, params=None):  # type: ignore[no-untyped-def]
        try:
            if isinstance(self.student, TableStudent):
                return self.student.answers(model_input, "The request")
            probabilities = self.student.predict(np.asarray(model_input))
            if self.student.scale is not None and (params or {}).get("numbers"):
                return self.student.scale.numbers(probabilities)
            return probabilities
        except InputError as error:
            raise MlflowException(str(error), error_code=BAD_REQUEST) from error


mlflow.models.set_model(PyfuncStudent())
