"""The student as an MLflow model, by MLflow's "models from code": this file is copied into the model and run there.

The model's artefacts are the student's sealed folder and its privacy statement. Loading checks every digest, unpickles
nothing, and needs only the copy of terrine that is stored with the model.
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
    """Predictions with class names as a data frame (`StudentModel.answers`).

    The input is an array of images, uint8 in [0, 255] or floating point in [0, 1], [B, C, height, width]; for the
    student of a table a data frame with the table's columns.

    model_config: `statistics` (null: those with which an answer depends on its image only), `reference` (path of a .npy
    file with uint8 images that replace the stored reference images, or null) and `device` (auto, cpu, cuda, mps).
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

    # MLflow warns if the input has no annotation, or one that is not among a few types.
    def predict(self, context, model_input: np.ndarray, params=None):  # type: ignore[no-untyped-def]
        try:
            if isinstance(self.student, TableStudent):
                return self.student.answers(model_input, "The request")
            return self.student.answers(self.student.predict(np.asarray(model_input)))
        except InputError as error:
            raise MlflowException(str(error), error_code=BAD_REQUEST) from error


mlflow.models.set_model(PyfuncStudent())
