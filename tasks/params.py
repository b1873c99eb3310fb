"""params.yaml, typed: every setting of a run, checked before any work.

`params.yaml` holds a complete set of parameters and the name of the run that `dvc repro` makes. A preset
(`experiments/NAME.yaml`) overrides some of them, `--set key=value` overrides a preset, and the result is one frozen
`Params`. Whatever is unknown, of the wrong type or impossible is refused with the key, the value and the remedy.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator, model_validator

from tasks.sections import AtHome, Section, section_of, without_what_stays_at_home
from tasks.transcription_params import Transcription
from terrine.data.public import PUBLIC_BENCHMARKS
from terrine.errors import SettingError
from terrine.models.kinds import KINDS, PARTS, Choice

Statistics = Literal["current", "original"]
Weights = dict[str, Annotated[float, Field(gt=0)]]

OWN_DATA = ("npz", "folder", "table")
"""Data sources that read somebody's own records from `data.path`."""


class Data(Section):
    """The private dataset and the geometry every image of the run is brought to."""

    name: str = "digits"
    root: Annotated[Path, AtHome()] = Path("data/private/source")
    """Where torchvision's and MedMNIST's own files lie, or are downloaded to."""
    path: Annotated[Path | None, AtHome()] = None
    """The user's own .npz file, image folder or CSV file (`name: npz`, `folder` or `table`)."""
    target: str | None = Field(None, min_length=1)
    """`table`: the column to be predicted."""
    id: str | None = Field(None, min_length=1)
    """`table`: the column that names a row, in which no value occurs twice; without it the row's number is its name."""
    group: str | None = Field(None, min_length=1)
    """`table`: the column that says whose record a row is."""
    party: str | None = Field(None, min_length=1)
    """`table`: the column that says who holds a row."""
    public_fraction: float = Field(0.2, gt=0, lt=1)
    """`table`: the share of rows, drawn by name, that you declare public: they are the queries."""
    size: int = Field(28, ge=8, le=320)
    channels: Literal[1, 3] = 1
    test_fraction: float = Field(0.2, gt=0, lt=1)
    """The share held out for evaluation where the source has no test split of its own."""
    pool: Literal["validation", "test"] | None = None
    """Real images that you declare public, as the source `pool` of queries: the validation split, or a part of the test
    split. No record is in two of private records, pool and test images, and no test image is in the pool."""
    pool_fraction: float = Field(0.7, gt=0, lt=1)
    """pool=test: the share of the test split, drawn by name, that is public."""
    download: bool = True
    public_benchmark: bool = Field(None, validate_default=True)  # type: ignore[assignment]
    """Whether anyone may already read the data, which allows an unlimited budget and private figures in MLflow. null:
    whether `name` is a known public benchmark's (`terrine.data.public`). false treats a benchmark as private, for
    rehearsals; true makes nothing public that is not on that list."""
    edition: str = Field("1", min_length=1)
    """A name that you give this version of your data: a release is identified by account, edition and settings. A new
    edition is released, and charged, anew."""

    @field_validator("edition", mode="before")
    @classmethod
    def _edition_as_text(cls, value: Any) -> Any:
        # YAML reads 2 and 2026-03-01 as a number and a date; 2026.10, as a number, would lose its last digit.
        return str(value) if type(value) in (int, date) else value

    @field_validator("public_benchmark", mode="before")
    @classmethod
    def _known_to_be_public(cls, value: Any, info: ValidationInfo) -> Any:
        return info.data.get("name") in PUBLIC_BENCHMARKS if value is None else value

    @model_validator(mode="after")
    def _path_where_needed(self) -> Data:
        if self.name in OWN_DATA and self.path is None:
            raise ValueError(f"path is missing: data.name={self.name} reads your own data. Set data.path to it")
        if self.public_benchmark and self.name not in PUBLIC_BENCHMARKS:
            raise ValueError(
                f"public_benchmark=true does not go with data.name={self.name}, which is not a known public benchmark. "
                "Leave it out, and set ledger.account and ledger.epsilon"
            )
        if self.name == "table" and self.target is None:
            raise ValueError("target is missing: data.name=table predicts one of your columns. Set data.target to it")
        if self.name == "table" and self.public_fraction + self.test_fraction >= 1:
            raise ValueError(
                f"public_fraction={self.public_fraction:g} and data.test_fraction={self.test_fraction:g} leave no "
                "record to teach. Their sum must be below 1"
            )
        if self.name == "table" and self.pool is not None:
            raise ValueError(f"pool={self.pool} is for images. Set data.pool=null and use data.public_fraction")
        for key in ("target", "id", "group", "party"):
            if self.name != "table" and getattr(self, key) is not None:
                raise ValueError(f"{key}={getattr(self, key)} has no meaning for data.name={self.name}. Remove it")
        return self

    @property
    def has_public_records(self) -> bool:
        """Whether some of its records are public and are asked about: their source is then opened to get at them."""
        return self.name == "table" or self.pool is not None


class Privacy(Section):
    """Whose privacy is protected."""

    unit: Literal["record", "group"] = "record"
    """`record`: one image. `group`: all images with the same group value (a patient); needs groups in the data."""


class Partition(Section):
    """How records are dealt to teachers."""

    kind: Literal["iid", "dirichlet", "similarity", "party"] = "iid"
    """`iid`: by a hash of each unit's own name. `party`: as the data's own column says. `dirichlet`, `similarity`: by
    label, imitating parties whose data differ."""
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


class Deformed(Section):
    """The largest amount of each deformation that a learned projection forgets."""

    rotation: float = Field(15.0, ge=0, le=180)
    """Degrees; 180 for cells and tissue, which have no upright."""
    scale: float = Field(0.12, ge=0, lt=1)
    shear: float = Field(0.2, ge=0)
    shift: float = Field(1 / 7, ge=0)
    """As a share of half the image's side."""


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
    weights: Annotated[Path | None, AtHome(unless=(None, "timm"))] = None
    """Weights from elsewhere instead of pretraining: a file (safetensors, or a state dict of torch), or `timm` for the
    ones that timm publishes. The statement says so."""
    enlarge: int | None = Field(None, ge=8, le=1024)
    """`timm`, `tiny_vit`: side to which images are resized first; null is as little as the architecture needs."""
    projection: int = Field(1000, ge=1)
    """Number of features that the scattering coefficients are projected to."""
    invariance: bool = False
    """Scattering: learn the projection on deformed query images, in closed form, instead of drawing it at random."""
    deformations: Deformed | None = None
    """Scattering with invariance: what is done to an image that leaves it the same; null is what leaves a digit one."""
    fitted_to: Literal["queries", "pretraining"] = "queries"
    """Scattering: the images that its projection and its original statistics are fitted to. `pretraining` where the
    queries are real ones that it is not to know."""
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
        if self.weights is not None and (not self.has_weights or self.kind == "concatenated"):
            raise ValueError(
                f"weights={self.weights} has no meaning for kind={self.kind}. Set backbone.weights=null, or "
                "backbone.kind to what the weights were made for"
            )
        if self.deformations is not None and not self.invariance:
            raise ValueError(
                "deformations have no meaning without invariance. Set backbone.invariance=true, or "
                "backbone.deformations=null"
            )
        if self.fitted_to != "queries" and self.kind != "scattering":
            raise ValueError(
                f"fitted_to={self.fitted_to} has no meaning for kind={self.kind}: it is for kind=scattering. Set "
                "backbone.fitted_to=queries"
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

    @property
    def pretrained_here(self) -> bool:
        """Whether the backbone is trained by this project, on synthetic images."""
        return self.has_weights and self.weights is None

    def identity(self) -> dict[str, Any]:
        """Return the parameters that the backbone depends on, as JSON values.

        Those that are not set are left out, and so is where weights from elsewhere lie: they go by their own digest.
        """
        unread = {"invariance", "deformations"} if self.has_weights else set()
        own = self.model_dump(mode="json", exclude={"weights", *unread})
        if self.fitted_to == "queries":
            del own["fitted_to"]
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
    options: dict[str, Any] = Field(default_factory=dict)


class Prompt(Section):
    """A frame around the image and a mapping of what the source makes of it; the paper's (docs/prompts.md)."""

    inner: int | None = Field(None, ge=1)
    """Side of the shrunken image on the source's canvas; null is 192/224 of the canvas."""
    mask: bool = True
    """Whether the trained pattern is the frame alone; false lays it over the image, too."""
    mapping: Literal["random", "fc1", "fc2"] = "fc1"
    """From the source's outputs to classes: drawn at random, or one or two trained layers."""
    hidden: int = Field(64, ge=1)
    """`fc2`: units of the first layer."""
    epochs: int = Field(10, ge=1)
    learning_rate: float = Field(0.05, gt=0)
    decay: float = Field(0.7, gt=0, le=1)
    """Factor of the learning rate after every epoch."""
    batch: int = Field(16, ge=2)
    """Records of a teacher in a step."""
    together: int = Field(256, ge=2)
    """Most records, of many teachers, in one pass through the source: with the number of passes side by side (one a
    core; one on a GPU) it bounds the memory of training, and of voting with original statistics. With current ones a
    vote takes a query batch at once."""


_OF_ROUNDS = (
    "mode",
    "learner",
    "averaging",
    "correction",
    "rounds",
    "steps",
    "step_decay",
    "server_rate",
    "control_release",
)
"""Settings of teachers of the kind `averaged` alone that have a default."""


class Teachers(Section):
    """The models that vote."""

    kind: Literal["linear", "finetune", "scratch", "estimator", "averaged", "prompt"] = "linear"
    """`linear`: a head on the backbone's features. `finetune`: the backbone's last layers and a head. `scratch`: a
    whole network. `estimator`: a scikit-learn classifier on the features. `averaged`: teachers that learn in rounds,
    with averages between them (docs/heterogeneous.md). `prompt`: a frame around the image (docs/prompts.md)."""
    statistics: Statistics = "current"
    initialisation: Literal["shared", "own"] = "shared"
    """Whether all teachers start from the same public random weights, or each from its own."""
    trainable: float = Field(25.0, ge=0.5, le=100)
    """`finetune`: percentage of the backbone's parameters, the last ones, that are trained at least."""
    architecture: Literal["small_cnn", "resnet10", "resnet18", "vgg9", "cryptonet", "pate_cnn"] = "small_cnn"
    """`scratch`: the network."""
    estimator: Estimator = Estimator()
    """`estimator`: the classifier and its settings."""
    prompt: Prompt = Prompt()
    """`prompt`: the frame, the mapping, and how they are trained."""
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
    mode: Literal["private", "paper"] = "private"
    """`averaged` with averaging=global. `private`: averages are clipped and released with noise from a share of the
    budget. `paper`: as published, without noise; the release is then marked NOT PRIVATE."""
    learner: Literal["linear", "finetune", "network"] = "linear"
    """`averaged`: what learns: a head, the backbone's last layers and a head, or the network `architecture`."""
    averaging: Literal["none", "global", "blocks"] = "global"
    """`averaged`: over whom is averaged. `none`: nobody, conventional training. `blocks`: groups that vote as one."""
    correction: Literal["none", "control_variates"] = "control_variates"
    """`averaged`: whether local steps are corrected for how a party's data differ."""
    rounds: int = Field(10, ge=1)
    """`averaged`: rounds of local training; there is one average fewer."""
    steps: int = Field(10, ge=1)
    """`averaged`: local steps in a round, each of `learning_rate`."""
    step_decay: float = Field(1.0, gt=0, le=1)
    """`averaged`: factor of the local step from one round to the next."""
    server_rate: float = Field(1.0, gt=0)
    """`averaged`: step of the average."""
    block: int | None = Field(None, ge=2)
    """averaging=blocks: parties in a group."""
    centre: Literal["none", "shared"] = "none"
    """learner=linear: whether features are centred by a mean over all parties that average with one another, which
    mode=private releases with noise, and queries by that of their batch. For parties that lack classes."""
    clip: float | None = Field(None, gt=0)
    """mode=private: norm to which a teacher's update is clipped."""
    budget_share: float | None = Field(None, gt=0, lt=1)
    """mode=private: share of the run's budget, in units of μ², that pays for the averages."""
    control_release: Literal["derived", "released"] = "derived"
    """mode=private: whether the control variate is computed from the released average, or released by itself."""

    @model_validator(mode="after")
    def _networks_need_batches(self) -> Teachers:
        network = self.kind in ("finetune", "scratch") or (self.kind == "averaged" and self.learner != "linear")
        if network and self.batch == 1:
            raise ValueError("batch=1 is too small for teachers that are networks. Set teachers.batch to 2 or more")
        return self

    @model_validator(mode="after")
    def _parameters_of_the_averages(self) -> Teachers:
        for key in _OF_ROUNDS if self.kind != "averaged" else ():
            value = getattr(self, key)
            if value != type(self).model_fields[key].default:
                raise ValueError(
                    f"{key}={value} has no meaning for kind={self.kind}: it is for teachers that learn in rounds. Set "
                    f"teachers.kind=averaged, or leave teachers.{key} out"
                )
        wanted = {
            "block": self.kind == "averaged" and self.averaging == "blocks",
            "clip": self.releases_averages,
            "budget_share": self.releases_averages,
        }
        for key, needed in wanted.items():
            value = getattr(self, key)
            if needed and value is None:
                raise ValueError(
                    f"{key} is missing: teachers.kind=averaged with averaging={self.averaging} and mode={self.mode} "
                    f"needs it. Set teachers.{key}"
                )
            if not needed and value is not None:
                raise ValueError(
                    f"{key}={value:g} has no meaning for kind={self.kind}, averaging={self.averaging} and "
                    f"mode={self.mode}. Set teachers.{key}=null"
                )
        centred = self.centre == "shared"
        if centred and (self.kind != "averaged" or self.learner != "linear" or self.statistics != "original"):
            raise ValueError(
                f"centre=shared does not go with kind={self.kind}, learner={self.learner} and "
                f"statistics={self.statistics}: it takes the place of batch statistics for heads on features. Set "
                "teachers.kind=averaged, learner=linear and statistics=original, or teachers.centre=none"
            )
        if self.averages and self.rounds < 2:
            raise ValueError(
                f"rounds={self.rounds} leaves nothing to average: the last round's teachers vote. Set teachers.rounds "
                "to 2 or more, or teachers.averaging=none"
            )
        return self

    @property
    def averages(self) -> bool:
        """Whether teachers learn from one another."""
        return self.kind == "averaged" and self.averaging == "global"

    @property
    def releases_averages(self) -> bool:
        """Whether what they learn from one another is a release with noise."""
        return self.averages and self.mode == "private"

    @property
    def unprotected(self) -> bool:
        """Whether they learn from one another without noise, so that votes alone guarantee nothing."""
        return self.averages and self.mode == "paper"

    def voters(self, parties: int) -> int:
        """Return how many vote: every party, or every group of them."""
        if self.kind != "averaged" or self.block is None:
            return parties
        return max(1, round(parties / self.block))


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
    where: Literal["local", "parties"] = "local"
    """`local`: one process counts the votes. `parties`: each party keeps its own, see `collaboration`."""

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


class Collaboration(Section):
    """A trial of `aggregation.where: parties`: every party a process on this machine (docs/collaboration.md)."""

    parties: int = Field(5, ge=1)
    """How many teacher parties the teachers are dealt to, in order."""
    minimum: int | None = Field(None, ge=1)
    """The fewest teachers whose votes must be there; null: all of them."""
    deadline: float = Field(60.0, gt=0)
    """Seconds that teacher parties are waited for."""
    patience: float = Field(300.0, gt=0)
    """Seconds after which a party that hears nothing gives up."""
    guardian: Annotated[str | None, AtHome()] = Field(None, pattern=r"^.+:\d+$")
    """host:port at which the guardian listens; null: a free port of this machine. So for the student."""
    student: Annotated[str | None, AtHome()] = Field(None, pattern=r"^.+:\d+$")


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

    url: Annotated[str, AtHome()] = "sqlite:///data/private/ledger/ledger.db"
    key: Annotated[Path, AtHome()] = Path("data/private/ledger/key")
    store: Annotated[Path, AtHome()] = Path("data/private/ledger/releases")
    account: Annotated[str | None, AtHome()] = Field(None, min_length=1)
    """Name under which all versions of a dataset share one budget. null: this very dataset, by its fingerprint (public
    benchmarks only)."""
    epsilon: float | None = Field(None, gt=0)
    """Budget of the account over all runs. null: record and compose, never refuse (public benchmarks only)."""


class Tracking(Section):
    """MLflow."""

    uri: Annotated[str, AtHome()] = "sqlite:///mlflow.db"
    experiment: str = "terrine"
    private_metrics: bool | None = None
    """Log figures that are functions of private records: votes, and what private stages cost. null: where the data are
    a public benchmark; true is refused for any other."""
    register_student: bool = True
    """Log the student as an MLflow model, ready to be served, and register it under the run's name."""


class Runner(Section):
    """Who carries the tasks."""

    kind: Literal["threads", "processes", "dask", "ray"] = "threads"
    workers: int | None = Field(None, ge=1)
    """null: one per CUDA device, or one per core where there is none."""
    address: Annotated[str | None, AtHome()] = Field(None, min_length=1)
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
    collaboration: Collaboration = Collaboration()
    student: Student = Student()
    ledger: LedgerSettings = LedgerSettings()
    runner: Runner = Runner()
    transcription: Transcription | None = None
    """Of a run that `terrine transcribe` makes; null for all others."""
    tracking: Tracking = Field(Tracking(), validate_default=True)
    """The last, for what its private_metrics are by default hangs on the others."""

    @field_validator("tracking")
    @classmethod
    def _private_metrics_of_public_data_alone(cls, value: Tracking, info: ValidationInfo) -> Tracking:
        if value.private_metrics is not None:
            return value
        data, transcription = info.data.get("data"), info.data.get("transcription")
        public = data is not None and data.public_benchmark
        foreign = transcription is not None and not transcription.teacher.anyone_may_know
        return value.model_copy(update={"private_metrics": public and not foreign})

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
        if self.transcription is not None:
            if self.data.name == "table":
                raise ValueError("data.name=table has no images that a generator could make. Use a dataset of images")
            self.transcription.check(
                self.data.public_benchmark,
                self.ledger.epsilon,
                self.ledger.account,
                bool(self.tracking.private_metrics),
                self.partition.reads_labels,
                self.privacy.unit,
            )
        if self.partition.reads_labels and not self.data.public_benchmark:
            raise ValueError(
                f"partition.kind={self.partition.kind} reads labels, so that one record can move others to another "
                "teacher, and no guarantee would hold. Use iid, or party where the data really lie with parties"
            )
        self._check_parties()
        self.student.check(self.backbone, self.aggregation)
        threshold, voters = self.aggregation.threshold, self.teachers.voters(self.partition.teachers)
        if threshold is not None and threshold > voters:
            of = "" if voters == self.partition.teachers else f" in {voters} groups that vote"
            raise ValueError(
                f"aggregation.threshold={threshold:g} is above partition.teachers={self.partition.teachers}{of}: "
                "hardly any query could pass. Lower the threshold or use more teachers"
            )
        self._check_averages()
        table, columns = self.data.name == "table", self.backbone.kind == "columns"
        if table != columns:
            raise ValueError(
                f"backbone.kind={self.backbone.kind} does not go with data.name={self.data.name}: the backbone of a "
                f"table is its columns, and of nothing else. Set backbone.kind={'columns' if table else 'scattering'}"
            )
        if table and self.teachers.kind in ("finetune", "scratch", "prompt"):
            raise ValueError(
                f"teachers.kind={self.teachers.kind} learns from images, and data.name=table has none. Set "
                "teachers.kind to estimator or linear"
            )
        if self.teachers.kind == "prompt":
            self._check_prompt()
        if self.teachers.kind == "finetune" and not self.backbone.has_weights:
            raise ValueError(
                f"teachers.kind=finetune trains weights of the backbone, and backbone.kind={self.backbone.kind} has "
                "none. Set teachers.kind=linear, or backbone.kind to resnet10 or resnet18"
            )
        if ("pool" in self.queries.sources) != (self.data.pool is not None):
            raise ValueError(
                f"queries.sources is {', '.join(self.queries.sources)} and data.pool is {self.data.pool}: the source "
                "`pool` is the public images that data.pool sets aside. Set both, or neither"
            )
        if self.backbone.pretrained_here and self.pretraining.images is None:
            raise ValueError(
                f"pretraining.images is missing: backbone.kind={self.backbone.kind} is pretrained on synthetic images. "
                "Set pretraining.images.count and pretraining.images.sources"
            )
        if self.backbone.fitted_to == "pretraining" and self.pretraining.images is None:
            raise ValueError(
                "pretraining.images is missing: backbone.fitted_to=pretraining fits the backbone to them. Set "
                "pretraining.images.count and pretraining.images.sources"
            )
        self._check_private_data()
        return self

    def _check_private_data(self) -> None:
        """Raise ValueError where what is not a public benchmark has no budget, or would be logged."""
        if self.data.public_benchmark:
            return
        why = "is not a known public benchmark"
        if self.data.name in PUBLIC_BENCHMARKS:
            why = "is treated as private (data.public_benchmark=false)"
        if self.ledger.epsilon is None:
            raise ValueError(
                f"ledger.epsilon is missing: data.name={self.data.name} {why}, so its releases over all runs need a "
                "budget. Set ledger.epsilon"
            )
        if self.ledger.account is None:
            raise ValueError(
                f"ledger.account is missing: data.name={self.data.name} {why}. Cropped, resized or grown, the data "
                "stay the same people's, and all their releases share one budget. Set ledger.account to a name for "
                "these data and keep it"
            )
        if self.tracking.private_metrics:
            raise ValueError(
                f"tracking.private_metrics=true would log functions of private records: data.name={self.data.name} "
                f"{why}. Leave it out, or set it to false"
            )

    def _check_prompt(self) -> None:
        prompt, backbone = self.teachers.prompt, self.backbone
        canvas = backbone.enlarge or self.data.size
        known = backbone.enlarge is not None or backbone.kind not in ("timm", "tiny_vit")
        if known and prompt.inner is not None and prompt.inner >= canvas + (not prompt.mask):
            raise ValueError(
                f"teachers.prompt.inner={prompt.inner} leaves no border on a canvas of {canvas}. Use 1 to {canvas - 1}"
            )
        if prompt.together < prompt.batch:
            raise ValueError(
                f"teachers.prompt.together={prompt.together} is less than the records of one teacher in a step, "
                f"teachers.prompt.batch={prompt.batch}. Raise it, or lower the batch"
            )

    def _check_averages(self) -> None:
        """Raise ValueError where teachers with averages do not suit the rest."""
        teachers = self.teachers
        if teachers.unprotected and not (self.data.public_benchmark and self.ledger.epsilon is None):
            raise ValueError(
                "teachers.mode=paper averages without noise: its release has no guarantee, and no budget can pay for "
                "it. Set teachers.mode=private; mode=paper is for public benchmarks, with ledger.epsilon=null"
            )
        if teachers.block is not None and teachers.voters(self.partition.teachers) < 2:
            raise ValueError(
                f"teachers.block={teachers.block} makes one group of partition.teachers={self.partition.teachers}. Set "
                "a smaller teachers.block"
            )
        if teachers.kind != "averaged" or teachers.learner == "linear":
            return
        if self.data.name == "table":
            raise ValueError(
                f"teachers.learner={teachers.learner} learns from images, and data.name=table has none. Set "
                "teachers.learner=linear"
            )
        if teachers.learner == "finetune" and self.backbone.kind == "scattering":
            raise ValueError(
                "teachers.learner=finetune trains weights of the backbone, and backbone.kind=scattering has none. Set "
                "teachers.learner=linear, or backbone.kind to resnet10 or resnet18"
            )

    def _check_parties(self) -> None:
        """Raise ValueError where parties cannot do together what the run asks for."""
        if self.aggregation.where != "parties":
            return
        if self.aggregation.mechanism not in ("histogram", "gnmax", "confident"):
            raise ValueError(
                f"aggregation.mechanism={self.aggregation.mechanism} does not go with aggregation.where=parties. Use "
                "histogram, gnmax or confident"
            )
        if self.queries.rounds > 1:
            raise ValueError(
                f"queries.rounds={self.queries.rounds} does not go with aggregation.where=parties, which asks all "
                "queries at once. Set queries.rounds=1 and queries.select=order"
            )
        if self.teachers.averages or self.teachers.block is not None:
            raise ValueError(
                f"teachers.averaging={self.teachers.averaging} does not go with aggregation.where=parties, whose "
                "parties exchange nothing before they vote. Use teachers that learn each by itself"
            )
        for key in ("parties", "minimum"):
            value = getattr(self.collaboration, key)
            if value is not None and value > self.partition.teachers:
                raise ValueError(
                    f"collaboration.{key}={value} is above partition.teachers={self.partition.teachers}. Set it to "
                    f"{self.partition.teachers} or less"
                )


def _sentence(error: ValidationError) -> str:
    """Turn pydantic's findings into sentences that name the key, the value and the remedy."""
    lines = []
    for finding in error.errors(include_url=False):
        key = ".".join(str(part) for part in finding["loc"])
        message = finding["msg"].removeprefix("Value error, ")
        if finding["type"] == "extra_forbidden":
            section: Any = Params
            for part in finding["loc"][:-1]:
                section = section_of(section.model_fields[str(part)])
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


def public_parameters(params: Params) -> dict[str, Any]:
    """Return what anybody may read of a run's parameters, as JSON values: all but what names the site's files, machines
    and data (`AtHome`), which is absent."""
    return published(params.model_dump(mode="json"))


def published(overrides: dict[str, Any]) -> dict[str, Any]:
    """Return overrides of parameters without those that stay at home."""
    return without_what_stays_at_home(overrides, Params)


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
    """YAML 1.1 reads 1e-5 as a string; people mean a number. Other text in quotes, such as "2", stays text."""
    return float(text) if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+", text) else text


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
