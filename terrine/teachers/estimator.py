"""Teachers that are scikit-learn classifiers: PATE accepts any kind of model.

The classifier is named in the settings and may be any with plain constructor arguments. It learns from frozen features
or a table's columns (the PATE papers use random forests on UCI Adult). Trained classifiers are stored in skops format,
i.e. as arrays and a description, without code or pickle; on reading, every type in it must belong to scikit-learn.
"""

from __future__ import annotations

import functools
import io
import json
import re
import warnings
import zipfile
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from threadpoolctl import threadpool_limits

from terrine.determinism.parallel import FirstAndLast, side_by_side
from terrine.determinism.randomness import derive_seed
from terrine.errors import ArtefactError, InputError, SettingError, first_line
from terrine.extras import from_extra
from terrine.queries import Queries
from terrine.settings import Field, Settings
from terrine.teachers.base import FeatureTeachers, TeacherContext, TeacherKind, start_seed
from terrine.teachers.memory import is_out_of_memory
from terrine.teachers.records import Arrays, Records, teacher_rows, vote_type

if TYPE_CHECKING:
    from terrine.teachers.base import Device, TrainedStates


class Estimator(Settings):
    """Name of a scikit-learn classifier."""

    name: str = Field("RandomForestClassifier", min_length=1)
    """Name of the scikit-learn classifier class."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Constructor arguments of the classifier. `random_state` defaults to a value derived from `seed`: the same for all
    teachers with initialisation=shared, otherwise different for each."""


class EstimatorTeachers(FeatureTeachers):
    """Classifiers of scikit-learn on features, or on a table's columns (random forests: Papernot et al. 2017)."""

    kind: Literal["estimator"] = "estimator"
    estimator: Estimator = Estimator()

    def build(self, context: TeacherContext) -> EstimatorKind:
        return EstimatorKind(self, context.classes, by_teacher=context.by_teacher)


class EstimatorKind(TeacherKind):
    """The kind `estimator`: a teacher's state is its serialised classifier, a uint8 array named `skops`.

    If a teacher saw only one class, its state is that class, int64 [1], named `only`, since many classifiers refuse to
    learn a single class. A teacher whose classifier cannot learn from its records (too few neighbours, a class with a
    single record) is not trained, like one without records, since an error would reveal something about the records.
    by_teacher: see `LinearKind`.

    Raises:
        SettingError: The classifier is unknown, or does not accept the options.
    """

    stacked = False

    def __init__(self, settings: EstimatorTeachers, classes: int, *, by_teacher: bool = False) -> None:
        self.settings, self.estimator, self.classes = settings, settings.estimator, classes
        self.by_teacher = by_teacher
        self._check_options()

    def train(self, records: Records, teachers: Sequence[int], *, seed: int, device: Device = "cpu") -> TrainedStates:
        """Yield (number, state) of each teacher that can be trained; each is trained on the CPU by one thread."""
        values = records.checked_inputs("features", by_teacher=self.by_teacher)
        teachers = records.trainable(teachers, self.min_records)
        rows = teacher_rows(records.assignment, teachers)

        def fit(position: int) -> tuple[int, Arrays | None]:
            inputs = np.asarray(values[rows[position]])
            labels = np.asarray(records.labels[rows[position]], np.int64)
            if not np.isfinite(inputs.sum(dtype=np.float64)):
                raise InputError(f"features: a record of teacher {teachers[position]} is not finite.")
            if (labels == labels[0]).all():
                return teachers[position], {"only": labels[:1].copy()}
            estimator = self._build(seed, teachers[position])
            try:
                with threadpool_limits(1, user_api="openmp"):  # OpenMP's limit belongs to the calling thread
                    estimator.fit(inputs, labels)
                    estimator.predict(inputs[:1])  # some classifiers learn from few records but then cannot predict
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                return teachers[position], None
            return teachers[position], {"skops": np.frombuffer(to_bytes(estimator), np.uint8)}

        with _one_thread_each:
            for teacher, state in side_by_side(fit, range(len(teachers))):
                if state is not None:
                    yield teacher, state

    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: Device = "cpu") -> np.ndarray:
        """Return votes [queries, teachers], computed on the CPU batch by batch."""

        def decide(state: Arrays) -> np.ndarray:
            votes = np.empty(len(queries.inputs), vote_type(self.classes))
            if "only" in state:
                votes[:] = state["only"][0]
                return votes
            if "skops" not in state:
                raise ArtefactError("A teacher's file contains no classifier. Run the stage 'teach' again.")
            estimator = from_bytes(state["skops"].tobytes())
            with threadpool_limits(1, user_api="openmp"):
                for batch in queries.batches:
                    votes[batch] = estimator.predict(np.asarray(queries.inputs[batch]))
            return votes

        with _one_thread_each:
            columns = list(side_by_side(decide, states))
        empty = np.empty((len(queries.inputs), 0), vote_type(self.classes))
        return np.stack(columns, axis=1) if columns else empty

    def _check_options(self) -> None:
        """Raise SettingError for options that the classifier rejects before seeing any records."""
        estimator = self._build(0, 0)
        try:
            estimator._validate_params()
        except ValueError as error:
            raise SettingError(
                f"teachers.estimator: {self.estimator.name} does not take {self.estimator.options} "
                f"({first_line(error)}). Give others."
            ) from error

    def _build(self, seed: int, teacher: int) -> Any:
        classifiers = _classifiers()
        if self.estimator.name not in classifiers:
            raise SettingError(
                f"teachers.estimator.name: scikit-learn has no classifier '{self.estimator.name}'. It has "
                f"{', '.join(sorted(classifiers))}."
            )
        try:
            estimator = classifiers[self.estimator.name](**self.estimator.options)
        except TypeError as error:
            raise SettingError(
                f"teachers.estimator: {self.estimator.name} does not take {self.estimator.options} ({error}). Give "
                "options that it has; classifiers built from other classifiers are not supported."
            ) from error
        known = estimator.get_params(deep=False)
        if "random_state" in known and "random_state" not in self.estimator.options:
            own = derive_seed(start_seed(seed, teacher, self.settings.initialisation), "estimator")
            estimator.set_params(random_state=own % 2**32)
        return estimator


@functools.cache
def _classifiers() -> dict[str, Any]:
    """Return scikit-learn's classifiers by name; cached, since the search imports all of scikit-learn.

    Convergence warnings are silenced, because they take several lines per teacher.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils import all_estimators

    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    return dict(all_estimators(type_filter="classifier"))


_one_thread_each = FirstAndLast(
    lambda: threadpool_limits(1, user_api="blas"), lambda limits: limits.restore_original_limits()
)
"""One thread per classifier, so that sums are rounded equally on every machine; BLAS threads are per process."""


def to_bytes(estimator: Any) -> bytes:
    """Return a trained scikit-learn estimator as an uncompressed skops archive: equal state, equal bytes.

    skops names entries by memory address and adds timestamps; this function numbers the entries and drops the times.
    """
    with from_extra("pipeline", "Teachers of scikit-learn"):
        import skops.io

    with zipfile.ZipFile(io.BytesIO(skops.io.dumps(estimator))) as archive:
        schema = archive.read("schema.json").decode()
        files = {name: archive.read(name) for name in archive.namelist() if name != "schema.json"}
    numbers: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        return match[1] + str(numbers.setdefault(match[2], len(numbers))) + match[3]

    schema = re.sub(r'("__id__": )(\d+)()', number, schema)
    schema = re.sub(r'("file": ")(\d+)(\.)', number, schema)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("schema.json"), json.dumps(json.loads(schema), sort_keys=True))
        named = {re.sub(r"^(\d+)", lambda m: str(numbers.get(m[1], m[1])), name): name for name in files}
        for name in sorted(named):
            archive.writestr(zipfile.ZipInfo(name), files[named[name]])
    return out.getvalue()


def from_bytes(data: bytes) -> Any:
    """Return the estimator that `to_bytes` stored.

    scikit-learn does not check the indices of trees that it loads, so the bytes must be exactly those written: the
    pipeline compares digests before it calls this function.

    Raises:
        ArtefactError: The archive is damaged, or contains a type that does not belong to scikit-learn.
    """
    with from_extra("pipeline", "Teachers of scikit-learn"):
        import skops.io

    try:
        unknown = skops.io.get_untrusted_types(data=data)
        foreign = [name for name in unknown if not name.startswith("sklearn.")]
        if foreign:
            raise ArtefactError(
                f"A teacher's file contains the type {foreign[0]}, which does not belong to scikit-learn. It was not "
                "written by Terrine: delete it and run the stage 'teach' again."
            )
        return skops.io.loads(data, trusted=unknown)
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, AttributeError, ImportError) as error:
        raise ArtefactError(
            f"A teacher's classifier cannot be read ({first_line(error)}). Delete the teachers and run the stage "
            "'teach' again with the current version of scikit-learn."
        ) from error
