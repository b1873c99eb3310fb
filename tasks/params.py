"""params.yaml, typed: every setting of a run, checked before any work.

`params.yaml` holds a complete set of parameters and the name of the run that `dvc repro` makes. A preset
(`experiments/NAME.yaml`) overrides some of them, `--set key=value` overrides a preset, and the result is one frozen
`Params`. Whatever is unknown, of the wrong type or impossible is refused with the key, the value and the remedy.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from terrine.errors import SettingError
from terrine.models.kinds import KINDS, PARTS, Choice

Statistics = Literal["current", "original"]
Weights = dict[str, Annotated[float, Field(gt=0)]]

OWN_DATA = ("npz", "folder", "table")
"""Data sources that hold somebody's own records: they need a budget and keep private figures out of MLflow."""


class Section(BaseModel):
    """A section of params.yaml: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)


class Data(Section):
    """The private dataset and the geometry every image of the run is brought to."""

    name: str = "digits"
    root: Path = Path("data/private/source")
    """Where torchvision's and MedMNIST's own files lie, or are downloaded to."""
    path: Path | None = None
    """The user's own .npz file, image folder or CSV file (`name: npz`, `folder` or `table`)."""
    target: str | None = Field(None, min_length=1)
    """`table`: the column to be predicted."""
    group: str | None = Field(None, min_length=1)
    """`table`: the column that says whose record a row is."""
    party: str | None = Field(None, min_length=1)
    """`table`: the column that says who holds a row."""
    public_fraction: float = Field(0.2, gt=0, lt=1)
    """`table`: the share of rows, drawn by position, that you declare public: they are the queries."""
    size: int = Field(28, ge=8, le=320)
    channels: Literal[1, 3] = 1
    test_fraction: float = Field(0.2, gt=0, lt=1)
    """The share held out for evaluation where the source has no test split of its own."""
    download: bool = True
    public_benchmark: bool = False
    """True only for data that anyone may already read: it allows an unlimited budget and private figures in MLflow."""

    @model_validator(mode="after")
    def _path_where_needed(self) -> Data:
        if self.name in OWN_DATA and self.path is None:
            raise ValueError(f"path is missing: data.name={self.name} reads your own data. Set data.path to it")
        if self.name in OWN_DATA and self.public_benchmark:
            raise ValueError(f"public_benchmark=true does not go with data.name={self.name}. Leave it false")
        if self.name == "table" and self.target is None:
            raise ValueError("target is missing: data.name=table predicts one of your columns. Set data.target to it")
        if self.name == "table" and self.public_fraction + self.test_fraction >= 1:
            raise ValueError(
                f"public_fraction={self.public_fraction:g} and data.test_fraction={self.test_fraction:g} leave no "
                "record to teach. Their sum must be below 1"
            )
        for key in ("target", "group", "party"):
            if self.name != "table" and getattr(self, key) is not None:
                raise ValueError(f"{key}={getattr(self, key)} has no meaning for data.name={self.name}. Remove it")
        return self


class Privacy(Section):
    """Whose privacy is protected."""

    unit: Literal["record", "group"] = "record"
    """`record`: one image. `group`: all images with the same group value (a patient); needs groups in the data."""


class Partition(Section):
    """How records are dealt to teachers."""

    kind: Literal["iid", "dirichlet", "similarity", "party"] = "iid"
    """`iid`: at random. `party`: as the data's own column says. `dirichlet`, `similarity`: by label, imitating parties
    whose data differ."""
    teachers: int = Field(50, ge=2)
    alpha: float | None = Field(None, gt=0)
    """`dirichlet`: concentration; the smaller, the fewer classes a teacher has."""
    similarity: float | None = Field(None, ge=0, le=100)
    """`similarity`: percentage of the records dealt at random; the rest is sorted by label and cut."""

    @model_validator(mode="after")
    def _parameters_of_the_kind(self) -> Partition:
        for key, kind in (("alpha", "dirichlet"), ("similarity", "similarity")):
            value = getattr(self, key)
            if self.kind == kind and value is None:
                raise ValueError(f"{key} is missing: kind={kind} needs it. Set partition.{key}")
            if self.kind != kind and value is not None:
                raise ValueError(f"{key}={value:g} has no meaning for kind={self.kind}. Set partition.{key}=null")
        return self

    @property
    def reads_labels(self) -> bool:
        """Whether exchanging one record may move others to another teacher."""
        return self.kind in ("dirichlet", "similarity")


class Images(Section):
    """A number of synthetic images from weighted sources."""

    count: int = Field(ge=1)
    sources: Weights = Field(min_length=1)

    def shares(self) -> dict[str, int]:
        """Return how many images each source draws: whole numbers that add up (largest remainders)."""
        total = sum(self.sources.values())
        exact = {kind: self.count * weight / total for kind, weight in self.sources.items()}
        counts = {kind: int(value) for kind, value in exact.items()}
        rest = sorted(exact, key=lambda kind: (counts[kind] - exact[kind], kind))
        for kind in rest[: self.count - sum(counts.values())]:
            counts[kind] += 1
        return {kind: counts[kind] for kind in sorted(counts) if counts[kind]}


class Queries(Images):
    """The images teachers vote on, in fixed batches of one source each."""

    count: int = Field(4000, ge=1)
    sources: Weights = Field(default={"dead_leaves": 1.0, "stylegan": 1.0}, min_length=1)
    batch: int = Field(500, ge=1)
    select: Literal["order", "balanced", "uncertain", "diverse", "guided"] = "order"
    """Which queries are asked first: the order they were drawn in, or what a student of the answers so far suggests.
    `guided`: it moves their pixels, too."""
    rounds: int = Field(1, ge=1, le=100)
    """How often the student looks at what was released and chooses again."""


class Backbone(Section):
    """The feature extractor that teachers and student share."""

    kind: Literal[
        "scattering",
        "resnet10",
        "resnet18",
        "vgg9",
        "densenet121",
        "tiny_vit",
        "timm",
        "concatenated",
        "columns",
    ] = "scattering"
    """`timm`: any architecture of timm. `concatenated`: several side by side. `columns`: of a table; its columns as
    they are."""
    architecture: str | None = Field(None, min_length=1)
    """`timm`: its name there, for example efficientnet_b0."""
    parts: tuple[str, ...] | None = Field(None, min_length=2)
    """`concatenated`: the kinds side by side, or names of timm; null is scattering and resnet18."""
    enlarge: int | None = Field(None, ge=8, le=1024)
    """`timm`, `tiny_vit`: side to which images are resized first; null is as little as the architecture needs."""
    projection: int = Field(1000, ge=1)
    """Number of features that the scattering coefficients are projected to."""
    invariance: bool = False
    """Scattering: learn the projection on deformed query images, in closed form, instead of drawing it at random."""
    stem: Literal["standard", "small"] = "standard"
    """ResNet, DenseNet: the stock 7x7 stem, or a 3x3 stem that keeps the resolution of small images. DenseNet121 takes
    the small one wherever the stock one fails."""

    @model_validator(mode="after")
    def _parameters_of_the_kind(self) -> Backbone:
        for key, kinds in (
            ("architecture", ("timm",)),
            ("parts", ("concatenated",)),
            ("enlarge", ("timm", "tiny_vit", "concatenated")),
        ):
            if getattr(self, key) is not None and self.kind not in kinds:
                raise ValueError(
                    f"{key}={getattr(self, key)} has no meaning for kind={self.kind}. Set backbone.{key}=null"
                )
        if self.kind == "timm" and self.architecture is None:
            raise ValueError(
                "architecture is missing: kind=timm needs timm's name of it. Set backbone.architecture, for example "
                "to efficientnet_b0"
            )
        if self.kind == "concatenated" and self.invariance:
            raise ValueError(
                "invariance=true has no meaning for kind=concatenated: the projection is learned for kind=scattering "
                "alone. Set backbone.invariance=false"
            )
        names = [name for name in self.choice.parts if name not in KINDS]
        names += [self.architecture] if self.architecture is not None else []
        for nested in ("concatenated", "columns", "timm"):
            if nested in self.choice.parts:
                raise ValueError(
                    f"parts has '{nested}', which cannot be a part. Name kinds of images, or architectures of timm"
                )
        if names:
            from terrine import vision  # slow to import, and few runs need it

            unknown = [name for name in names if not vision.timm.is_model(name)]
            if unknown:
                key = "architecture" if self.kind == "timm" else "parts"
                known = "" if self.kind == "timm" else f" Kinds are: {', '.join(PARTS)}."
                raise ValueError(
                    f"{key} names '{unknown[0]}', which timm does not know.{known} `terrine.vision.timm.list_models()` "
                    "lists timm's"
                )
        return self

    @property
    def choice(self) -> Choice:
        """What the models are asked for."""
        parts = self.parts or (("scattering", "resnet18") if self.kind == "concatenated" else ())
        return Choice(self.kind, self.architecture, parts, self.projection, self.stem, self.enlarge)

    @property
    def has_weights(self) -> bool:
        """Whether the backbone is pretrained, and can be fine-tuned."""
        return self.choice.has_weights

    def identity(self) -> dict[str, Any]:
        """Return the parameters that the backbone depends on, as JSON values; those that are not set are left out."""
        own = self.model_dump(mode="json", exclude={"invariance"} if self.has_weights else set())
        return {key: value for key, value in own.items() if value is not None}


class Pretraining(Section):
    """SimCLR on synthetic images (ignored by a backbone without weights)."""

    images: Images | None = None
    epochs: int = Field(50, ge=1)
    batch: int = Field(256, ge=2)
    learning_rate: float = Field(3e-4, gt=0)
    weight_decay: float = Field(1e-4, ge=0)
    temperature: float = Field(0.07, gt=0)
    projection: int = Field(128, ge=1)
    checkpoint_minutes: float = Field(1.0, gt=0)


class Estimator(Section):
    """A classifier of scikit-learn."""

    name: str = Field("RandomForestClassifier", min_length=1)
    options: dict[str, Any] = {}


class Teachers(Section):
    """The models that vote."""

    kind: Literal["linear", "finetune", "scratch", "estimator"] = "linear"
    """`linear`: a head on the backbone's features. `finetune`: the backbone's last layers and a head. `scratch`: a
    whole network. `estimator`: a scikit-learn classifier on the features."""
    statistics: Statistics = "current"
    initialisation: Literal["shared", "own"] = "shared"
    """Whether all teachers start from the same public random weights, or each from its own."""
    trainable: float = Field(25.0, ge=0.5, le=100)
    """`finetune`: percentage of the backbone's parameters, the last ones, that are trained at least."""
    architecture: Literal["small_cnn", "resnet10", "resnet18", "vgg9", "cryptonet"] = "small_cnn"
    """`scratch`: the network."""
    estimator: Estimator = Estimator()
    """`estimator`: the classifier and its settings."""
    feature_batch: int = Field(500, ge=2)
    """Most records of one teacher that share batch statistics."""
    optimiser: Literal["adam", "ridge"] = "ridge"
    ridge: float = Field(0.3, ge=1e-6)
    """`ridge`: penalty in units of a record's mean squared distance from its teacher's mean."""
    epochs: int = Field(50, ge=1)
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    batch: int | None = Field(256, ge=1)
    per_task: int = Field(50, ge=1)
    """Teachers trained together in one task."""

    @model_validator(mode="after")
    def _networks_need_batches(self) -> Teachers:
        if self.kind in ("finetune", "scratch") and self.batch == 1:
            raise ValueError("batch=1 is too small for teachers that are networks. Set teachers.batch to 2 or more")
        return self


MECHANISM_PARAMETERS: dict[str, tuple[str, ...]] = {
    "histogram": ("sigma",),
    "gnmax": ("sigma",),
    "lnmax": ("scale",),
    "confident": ("threshold", "sigma1", "sigma2"),
    "interactive": ("threshold", "sigma1", "sigma2", "surprise", "confidence"),
}
ALL_MECHANISM_PARAMETERS = tuple(dict.fromkeys(key for keys in MECHANISM_PARAMETERS.values() for key in keys))


class Aggregation(Section):
    """The mechanism that turns votes into a release, and the budget of the run."""

    mechanism: Literal["histogram", "gnmax", "confident", "interactive", "lnmax"] = "histogram"
    sigma: float | None = Field(None, gt=0)
    """Standard deviation, in votes, of the noise on an answer (`histogram`, `gnmax`)."""
    scale: float | None = Field(None, gt=0)
    """`lnmax`: scale, in votes, of the Laplace noise on an answer."""
    threshold: float | None = None
    """`confident`, `interactive`: how many votes the winner must have."""
    sigma1: float | None = Field(None, gt=0)
    """`confident`, `interactive`: standard deviation of the noise on the threshold test."""
    sigma2: float | None = Field(None, gt=0)
    """`confident`, `interactive`: standard deviation of the noise on the answer."""
    surprise: float | None = None
    """`interactive`: by how many votes the teachers must differ from the student to be asked in later rounds."""
    confidence: float | None = Field(None, ge=0, le=1)
    """`interactive`: how sure the student must be of its own label for it to be confirmed."""
    epsilon: float = Field(8.0, gt=0)
    delta: float = Field(1e-5, gt=0, lt=1)
    noise: Literal["secure", "replay"] = "secure"
    where: Literal["local"] = "local"

    @model_validator(mode="after")
    def _parameters_of_the_mechanism(self) -> Aggregation:
        wanted = MECHANISM_PARAMETERS[self.mechanism]
        for key in ALL_MECHANISM_PARAMETERS:
            value = getattr(self, key)
            if key in wanted and value is None:
                raise ValueError(f"{key} is missing: mechanism={self.mechanism} needs it. Set aggregation.{key}")
            if key not in wanted and value is not None:
                raise ValueError(
                    f"{key}={value} has no meaning for mechanism={self.mechanism}. Set aggregation.{key}=null"
                )
        return self

    @property
    def mechanism_parameters(self) -> dict[str, float]:
        """The parameters of the chosen mechanism alone."""
        return {key: getattr(self, key) for key in MECHANISM_PARAMETERS[self.mechanism]}


class Student(Section):
    """The model that leaves the building. What a kind does not use is ignored by it (docs/students.md)."""

    kind: Literal["linear", "finetune", "full", "fixmatch", "freematch", "vat"] = "linear"
    statistics: Statistics = "current"
    batch: int = Field(500, ge=2)
    """Images that share batch statistics when the student is evaluated."""
    l2: float | None = Field(None, ge=0)
    """Precision of the prior on a class's score; null chooses it on released answers."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    forward_correction: bool = False
    """Labels: let the student allow for the mechanism's noise, known from its sigma, the teachers and the classes."""
    hidden: int | None = Field(None, ge=1)
    """Units of the head's hidden layer; null is a linear head."""
    trainable: float | None = Field(None, ge=0, le=100)
    """Per cent of the backbone's weights that are trained, from its end; 0: the head alone, null: as the kind does."""
    steps: int = Field(2000, ge=1)
    train_batch: int = Field(128, ge=2)
    """Answers in a step."""
    learning_rate: float | None = Field(None, gt=0)
    """null: 0.001 for a head alone, 0.0001 with a backbone."""
    weight_decay: float = Field(0.0, ge=0)
    augment: bool = False
    """Learn from weak views of answered images instead of the images as they are."""
    flip: bool = False
    """A mirrored image has the class of the image: true for tissue, false for digits."""
    views: int = Field(4, ge=0)
    """Frozen backbone: weak and strong views of each image whose features are computed."""
    ema: float = Field(0.99, ge=0, lt=1)
    """Memory of the moving average of the weights, which is what is kept."""
    patience: int | None = Field(5, ge=1)
    """Evaluations on held-out answers without an improvement after which training ends; null never holds any out."""
    pool: int | None = Field(None, ge=0)
    """Most pretraining images that are looked at beside the queries; null is all."""
    unlabelled_weight: float = Field(1.0, ge=0)
    unlabelled_ratio: int = Field(4, ge=1)
    threshold: float = Field(0.95, ge=0, le=1)
    """`fixmatch`: confidence from which on the student teaches itself."""
    decay: float = Field(0.99, ge=0, lt=1)
    """`freematch`: memory of the thresholds."""
    fairness: float = Field(0.01, ge=0)
    """`freematch`: weight of the fairness of classes."""
    perturbation: float = Field(0.3, gt=0)
    """`vat`: length of the perturbation, in units of the inputs' distance from their mean."""
    power_iterations: int = Field(1, ge=1)
    """`vat`: steps of the search for the worst direction."""

    @model_validator(mode="after")
    def _settings_of_the_kind(self) -> Student:
        if self.label_smoothing and self.forward_correction:
            raise ValueError(
                f"label_smoothing={self.label_smoothing:g} and forward_correction=true are two remedies for one ill. "
                "Use one of them"
            )
        if self.kind == "linear" and (self.hidden is not None or self.trainable):
            key = "hidden" if self.hidden is not None else "trainable"
            raise ValueError(
                f"{key}={getattr(self, key):g} has no meaning for kind=linear. Use kind=finetune (with trainable=0 for "
                f"a head alone), or set student.{key}=null"
            )
        if self.kind == "full" and self.trainable not in (None, 100):
            raise ValueError(f"trainable={self.trainable:g} does not go with kind=full. Use kind=finetune")
        return self

    def check(self, backbone: Backbone, aggregation: Aggregation) -> None:
        """Raise ValueError where the student does not suit the backbone or the answers it will be given."""
        without_weights = not backbone.has_weights
        share = {"finetune": 10.0, "full": 100.0}.get(self.kind) if self.trainable is None else self.trainable
        if without_weights and share:
            raise ValueError(
                f"student.trainable={share:g} does not go with backbone.kind={backbone.kind}, which has no weights to "
                "train. Set student.kind=finetune and student.trainable=0 to train a head alone, or use a resnet"
            )
        if backbone.kind == "columns" and self.kind != "linear":
            raise ValueError(f"student.kind={self.kind} learns from images, not columns. Use student.kind=linear")
        if self.forward_correction and aggregation.mechanism not in ("gnmax", "confident", "interactive"):
            raise ValueError(
                f"student.forward_correction=true does not go with aggregation.mechanism={aggregation.mechanism}: it "
                "is derived for labels with Gaussian noise. Set it to false"
            )


class LedgerSettings(Section):
    """Who remembers what was released, and how much may be released in all."""

    url: str = "sqlite:///data/private/ledger/ledger.db"
    key: Path = Path("data/private/ledger/key")
    store: Path = Path("data/private/ledger/releases")
    account: str | None = Field(None, min_length=1)
    """Name under which all versions of a dataset share one budget. null: this very dataset, by its fingerprint."""
    epsilon: float | None = Field(None, gt=0)
    """Budget of the account over all runs. null: record and compose, never refuse (public benchmark data only)."""


class Tracking(Section):
    """MLflow."""

    uri: str = "sqlite:///mlflow.db"
    experiment: str = "terrine"
    private_metrics: bool = False
    """Log figures that are functions of private votes; only for public benchmark data."""
    register_student: bool = True
    """Log the student as an MLflow model, ready to be served, and register it under the run's name."""


class Runner(Section):
    """Who carries the tasks."""

    kind: Literal["threads", "processes", "dask", "ray"] = "threads"
    workers: int | None = Field(None, ge=1)
    """null: one per CUDA device, or one per core where there is none."""
    address: str | None = Field(None, min_length=1)
    """Where an existing cluster listens: Dask's scheduler (tcp://host:8786) or Ray's head (ray://host:10001)."""

    @model_validator(mode="after")
    def _address_of_a_cluster(self) -> Runner:
        if self.address is None:
            return self
        if self.kind not in ("dask", "ray"):
            raise ValueError(
                f"address={self.address} needs runner.kind=dask or ray. Set it, or set runner.address=null"
            )
        if self.workers is not None:
            raise ValueError(
                f"workers={self.workers} has no meaning beside runner.address: the cluster has the workers it has. "
                "Set runner.workers=null"
            )
        return self


class Params(Section):
    """All parameters of one run."""

    seed: int = Field(0, ge=0)
    device: str = "auto"
    data: Data = Data()
    privacy: Privacy = Privacy()
    partition: Partition = Partition()
    queries: Queries = Queries()
    backbone: Backbone = Backbone()
    pretraining: Pretraining = Pretraining()
    teachers: Teachers = Teachers()
    aggregation: Aggregation = Aggregation(sigma=1.0)
    student: Student = Student()
    ledger: LedgerSettings = LedgerSettings()
    tracking: Tracking = Tracking()
    runner: Runner = Runner()

    @field_validator("device")
    @classmethod
    def _device_has_a_name(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("is empty. Use auto, cpu, cuda, cuda:N or mps")
        return value

    @model_validator(mode="after")
    def _sections_agree(self) -> Params:
        current = "current" in (self.teachers.statistics, self.student.statistics)
        if current and self.queries.batch < 2:
            raise ValueError(
                f"queries.batch={self.queries.batch} is too small: current statistics need at least 2 images in a "
                "batch (16 or more are wise). Raise queries.batch, or use statistics: original"
            )
        alone = [kind for kind, share in self.queries.shares().items() if share < 2]
        if current and alone and self.data.name != "table":
            raise ValueError(
                f"queries.count={self.queries.count} leaves one image for the source '{alone[0]}': current statistics "
                "need two. Raise queries.count, or the source's weight"
            )
        if self.aggregation.mechanism == "interactive" and self.queries.rounds < 2:
            raise ValueError(
                f"queries.rounds={self.queries.rounds} is too few: aggregation.mechanism=interactive compares a "
                "student of the first round with the teachers in the later ones. Set queries.rounds to 2 or more"
            )
        if self.queries.select != "order" and self.queries.rounds < 2:
            raise ValueError(
                f"queries.select={self.queries.select} chooses by what earlier rounds released. Set queries.rounds to "
                "2 or more, or queries.select=order"
            )
        if self.queries.select == "guided" and self.data.name == "table":
            raise ValueError(
                "queries.select=guided moves the pixels of images, and data.name=table has none. Set queries.select to "
                "order, balanced, uncertain or diverse"
            )
        if self.partition.reads_labels and not self.data.public_benchmark:
            raise ValueError(
                f"partition.kind={self.partition.kind} reads labels, so that one record can move others to another "
                "teacher, and no guarantee would hold. Use iid, or party where the data really lie with parties "
                "(data.public_benchmark=true only if anyone may read the data)"
            )
        self.student.check(self.backbone, self.aggregation)
        threshold = self.aggregation.threshold
        if threshold is not None and threshold > self.partition.teachers:
            raise ValueError(
                f"aggregation.threshold={threshold:g} is above partition.teachers={self.partition.teachers}: hardly "
                "any query could pass. Lower the threshold or use more teachers"
            )
        table, columns = self.data.name == "table", self.backbone.kind == "columns"
        if table != columns:
            raise ValueError(
                f"backbone.kind={self.backbone.kind} does not go with data.name={self.data.name}: the backbone of a "
                f"table is its columns, and of nothing else. Set backbone.kind={'columns' if table else 'scattering'}"
            )
        if table and self.teachers.kind in ("finetune", "scratch"):
            raise ValueError(
                f"teachers.kind={self.teachers.kind} learns from images, and data.name=table has none. Set "
                "teachers.kind to estimator or linear"
            )
        if self.teachers.kind == "finetune" and not self.backbone.has_weights:
            raise ValueError(
                f"teachers.kind=finetune trains weights of the backbone, and backbone.kind={self.backbone.kind} has "
                "none. Set teachers.kind=linear, or backbone.kind to resnet10 or resnet18"
            )
        if self.backbone.has_weights and self.pretraining.images is None:
            raise ValueError(
                f"pretraining.images is missing: backbone.kind={self.backbone.kind} is pretrained on synthetic images. "
                "Set pretraining.images.count and pretraining.images.sources"
            )
        if self.ledger.epsilon is None and not self.data.public_benchmark:
            raise ValueError(
                f"ledger.epsilon is missing: data.name={self.data.name} may be private, so its releases over all runs "
                "need a budget. Set ledger.epsilon (data.public_benchmark=true only if anyone may read the data)"
            )
        if self.ledger.account is None and self.data.name in OWN_DATA:
            raise ValueError(
                "ledger.account is missing: cropped, resized or grown, your data stays the same people's, and all its "
                "releases share one budget. Set ledger.account to a name for this data and keep it"
            )
        if self.tracking.private_metrics and not self.data.public_benchmark:
            raise ValueError(
                "tracking.private_metrics=true would log functions of private votes. Set it to false "
                "(data.public_benchmark=true only if anyone may read the data)"
            )
        return self


def _sentence(error: ValidationError) -> str:
    """Turn pydantic's findings into sentences that name the key, the value and the remedy."""
    lines = []
    for finding in error.errors(include_url=False):
        key = ".".join(str(part) for part in finding["loc"])
        message = finding["msg"].removeprefix("Value error, ")
        if finding["type"] == "extra_forbidden":
            section: Any = Params
            for part in finding["loc"][:-1]:
                section = section.model_fields[str(part)].annotation
            known = ", ".join(getattr(section, "model_fields", {}))
            lines.append(f"{key}: there is no such parameter. Known here: {known}.")
        elif finding["type"] == "value_error":
            lines.append(f"{key}.{message}." if key else f"{message}.")
        else:
            lines.append(f"{key}={finding['input']!r}: {message[0].lower()}{message[1:]}.")
    return "\n".join(lines)


def validate(values: dict[str, Any]) -> Params:
    """Check a nested mapping and return it as `Params`.

    Raises SettingError naming every key that is unknown, of the wrong type or impossible, and what to do about it.
    """
    try:
        return Params.model_validate(values)
    except ValidationError as error:
        raise SettingError(_sentence(error)) from error


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping. Raises SettingError if the file is missing, no YAML, or no mapping."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingError(f"{path}: there is no such parameter file.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(values, dict):
        raise SettingError(f"{path} must hold a mapping of parameters, not {type(values).__name__}.")
    return values


def merge(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with `overrides` laid over it, section by section; weights of sources are replaced whole."""
    merged = dict(base)
    for key, value in overrides.items():
        both_sections = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both_sections and key != "sources" else value
    return merged


def parse_assignment(text: str) -> dict[str, Any]:
    """Turn `section.key=value` (value in YAML) into a nested mapping.

    >>> parse_assignment("aggregation.epsilon=2")
    {'aggregation': {'epsilon': 2}}
    """
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise SettingError(f"--set {text}: write section.key=value, for example --set aggregation.epsilon=2.")
    try:
        nested: Any = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise SettingError(f"--set {text}: '{value}' is no YAML value. Put it in quotes.") from error
    if isinstance(nested, str):
        nested = _number_like(nested)
    for part in reversed(parts):
        nested = {part: nested}
    return nested


def _number_like(text: str) -> str | float:
    """YAML 1.1 reads 1e-5 as a string; people mean a number."""
    try:
        return float(text)
    except ValueError:
        return text


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested mappings into `section.key` pairs."""
    pairs: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            pairs |= flat(value, f"{prefix}{key}.")
        else:
            pairs[f"{prefix}{key}"] = value
    return pairs


def digest(value: Any, length: int = 12) -> str:
    """Return a short hexadecimal digest of a JSON-like value; equal values have equal digests."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
