"""Settings of model transcription (docs/dpsd.md): section `transcription` of a run.

Such a run has its own stages and ignores the sections queries, backbone, pretraining, teachers, aggregation and
student. Symbols are those of DPSD (Liu et al. 2026).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import PositiveFloat, model_validator

from terrine.settings import Field, Settings, SiteLocal, Unit

Distillation = Literal["decoupled", "classic"]
GradientOf = Literal["probabilities", "scores"]
FitLoss = Literal["cross_entropy", "squared"]
Form = Literal["printed", "intended"]


class Annotation(Settings):
    """The release about synthetic samples (eq. 2 to 5)."""

    sigma: float | None = Field(None, ge=0)
    """protect=data: σ, standard deviation of the noise in units of beta. 0 requires noise=none."""
    epsilon: float | None = Field(None, gt=0, le=40)
    """ε of one answer (protect=answers) or of one private label (protect=labels)."""
    beta: float = Field(1e-3, gt=0)
    """β: largest norm of a client's gradient, see `norm`."""
    norm: Literal["batch", "sample"] = "sample"
    """Norm in the denominator of eq. 3: of the whole batch's gradient (μ² = 4T/σ²) or of each sample's (4bT/σ²)."""
    top_k: int = Field(3, ge=2)
    """k: largest entries kept of each sample's gradient (protect=data), or the student's most probable classes, among
    which an answer is drawn (protect=answers)."""
    limit: Literal["normalise", "clip"] = "normalise"
    """Limit on the norm: `normalise` divides by the norm plus `stability`, as published; `clip` limits only longer
    ones."""
    stability: float = Field(1e-4, gt=0)
    """h: constant of `normalise`."""
    step: float = Field(0.1, gt=0)
    """γ_s of eq. 3: distance of the annotation from the student's output."""
    distillation: Distillation = "decoupled"
    """Distillation loss whose gradient is released: decoupled or classic."""
    balance: float = Field(8.0, gt=0)
    """λ: weight in decoupled distillation."""
    gradient_of: GradientOf = "probabilities"
    """Student output with respect to which gradients are computed."""


class TranscriptionTeacher(Settings):
    """The model that is transcribed: read from a file, or trained on the dataset."""

    file: Annotated[Path | None, SiteLocal()] = None
    """Weights of `architecture`: safetensors, or a state dict that torch.load reads with weights_only."""
    architecture: str = Field("small_cnn", min_length=1)
    """`linear`: a head on the student's public backbone. Any other name is a network of `terrine.models`, timm:NAME or
    torchvision:NAME."""
    public: bool = False
    """The training data of `file` are public. Without this, the teacher's data need a separate account."""
    mean: float | tuple[float, ...] = 0.0
    """With `file`: mean of the input normalisation (pixels in [0, 1] − mean) / deviation. One number, or one per
    channel."""
    deviation: PositiveFloat | tuple[PositiveFloat, ...] = 1.0
    """With `file`: deviation of the input normalisation. One number, or one per channel."""
    statistics: Literal["current", "original"] = "current"
    """Batch normalisation statistics: those of the generated batch, or the teacher's original ones."""
    temperature: float = Field(1.0, gt=0)
    """Temperature of the softmax over the teacher's scores."""
    epochs: int = Field(10, ge=1)
    """Passes over the records if the teacher is trained in this run."""
    learning_rate: float = Field(1e-3, gt=0)
    """Adam learning rate."""
    weight_decay: float = Field(0.0, ge=0)
    """Adam weight decay."""
    batch: Annotated[int, Unit("records")] = Field(256, ge=2)
    """Number of records per step of the teacher's training."""
    ridge: float = Field(0.3, ge=1e-6)
    """architecture=linear: ridge penalty."""

    @property
    def anyone_may_know(self) -> bool:
        """True if the model was trained on the dataset or on public data."""
        return self.file is None or self.public

    @model_validator(mode="after")
    def _file_and_kind(self) -> TranscriptionTeacher:
        foreign = ":" in self.architecture
        if foreign and self.architecture.split(":")[0] not in ("timm", "torchvision"):
            raise ValueError(
                f"architecture={self.architecture} names no library. Use timm:NAME, torchvision:NAME, or a network of "
                "Terrine's own"
            )
        if foreign and self.file is None:
            raise ValueError(
                f"architecture={self.architecture} is read from a file. Set transcription.teacher.file, or take a "
                "network of Terrine's own"
            )
        if self.architecture == "linear" and self.file is not None:
            raise ValueError("file has no meaning for architecture=linear: it is trained. Set teacher.file=null")
        for name, value in (("mean", self.mean), ("deviation", self.deviation)):
            if isinstance(value, tuple) and len(value) not in (1, 3):
                raise ValueError(f"{name} has {len(value)} numbers. Give one, or one for each of three channels")
        return self


class TranscriptionStudent(Settings):
    """The student, which may be published."""

    architecture: str = Field("small_cnn", min_length=1)
    """`scattering`: a trained head on fixed public features. Otherwise a network of `terrine.models` or timm."""
    projection: Annotated[int, Unit("features")] = Field(200, ge=1)
    """architecture=scattering: number of features."""
    invariance: bool = True
    """architecture=scattering: fit the projection to images of the untrained generator, which are public."""
    optimiser: Literal["adam", "sgd"] = "adam"
    """Optimiser."""
    learning_rate: float = Field(0.1, gt=0)
    """γ_s: learning rate."""
    decay: float = Field(0.0, ge=0)
    """Weight decay."""
    loss: FitLoss = "cross_entropy"
    """Loss: `cross_entropy`, as published (eq. 7); `squared`, the likelihood of an annotation with Gaussian noise."""
    steps: int = Field(1, ge=1)
    """Training steps per iteration. Steps after the first use batches annotated earlier."""
    final_steps: Annotated[int, Unit("steps")] = Field(0, ge=0)
    """Training steps on stored annotated batches after the last iteration."""
    memory: Annotated[int, Unit("batches")] = Field(1000, ge=1)
    """Number of annotated batches that are stored."""

    @property
    def learns_projection(self) -> bool:
        """True if a projection is fitted to public images (`terrine.models.lda_projection`)."""
        return self.architecture == "scattering" and self.invariance


class TranscriptionGenerator(Settings):
    """The generator of the images that teachers annotate."""

    latent: int = Field(100, ge=1)
    """Dimension of the latent vectors."""
    width: Annotated[int, Unit("channels")] = Field(128, ge=2)
    """Channels of the first layers."""
    learning_rate: float = Field(0.01, gt=0)
    """γ_g: learning rate."""
    steps: int = Field(1, ge=0)
    """Training steps per iteration, against the student. 0: the generator stays random."""
    inputs: Literal["trained", "fresh"] = "trained"
    """Latent vectors: `trained`, one batch trained with the generator (algorithm 1); `fresh`, new in each iteration."""
    one_hot: float = Field(1.0, ge=0)
    """Weight of the loss that favours confident answers."""
    entropy: float = Field(1.0, ge=0)
    """Weight of the loss that favours answers spread over all classes."""
    activation: float = Field(1.0, ge=0)
    """Weight of the loss that favours strong features. 0: off (Table VI, as for the two weights above)."""
    form: Form = "printed"
    """Form of the losses: as printed in eq. 8, or as described in its text."""
    discriminator: Literal["student", "teacher"] = "student"
    """Discriminator: the student, or the teacher (the paper's DPSD-T), NOT PRIVATE for generator and student."""


class Transcription(Settings):
    """Mechanism, protected quantity and budget of a transcription."""

    protect: Literal["data", "answers", "labels"] = "data"
    """Protected quantity: `data`, by Gaussian noise on gradients; `answers`, the teacher's classes by randomised
    response, as published for labels; `labels`, by randomising private labels once (images are not protected)."""
    epsilon: Annotated[float, Unit("ε")] = Field(10.0, gt=0)
    """ε of the run, from sound accounting."""
    delta: float = Field(1e-5, gt=0, lt=1)
    """δ of the run."""
    noise: Literal["secure", "replay", "none"] = "secure"
    """Source of the noise. With `replay` and `none` the run is NOT PRIVATE."""
    iterations: Annotated[int, Unit("iterations")] = Field(200, ge=1)
    """T: number of iterations."""
    batch: Annotated[int, Unit("images")] = Field(256, ge=2)
    """b: generated images per iteration."""
    federated: bool = False
    """FedDPSD: partition.teachers clients, as divided by `partition`. false: one teacher with all records."""
    per_task: Annotated[int | None, Unit("clients")] = Field(None, ge=1)
    """Clients per Prefect task. null: all, in the flow's process."""
    annotation: Annotation = Annotation()
    teacher: TranscriptionTeacher = TranscriptionTeacher()
    student: TranscriptionStudent = TranscriptionStudent()
    generator: TranscriptionGenerator = TranscriptionGenerator()

    @model_validator(mode="after")
    def _noise_and_mechanism(self) -> Transcription:
        protect, sigma, epsilon = self.protect, self.annotation.sigma, self.annotation.epsilon
        if protect != "data" and self.noise == "none":
            raise ValueError(f"noise=none does not go with protect={protect}. Use protect=data and sigma=0")
        given = {"sigma": sigma, "epsilon": epsilon}
        needed, other = ("sigma", "epsilon") if protect == "data" else ("epsilon", "sigma")
        if given[other] is not None:
            raise ValueError(
                f"annotation.{other}={given[other]:g} has no meaning for protect={protect}. Set it to null"
            )
        if self.noise == "none":
            if sigma:
                raise ValueError(f"annotation.sigma={sigma:g} contradicts noise=none. Set it to 0")
        elif given[needed] is None:
            raise ValueError(
                f"annotation.{needed} is missing: protect={protect} needs it. Set transcription.annotation.{needed}"
            )
        elif sigma == 0:
            raise ValueError(
                "annotation.sigma=0 guarantees nothing. Set it above 0; or, to see what the method does without noise, "
                "set transcription.noise=none, which marks the run NOT PRIVATE"
            )
        return self

    @model_validator(mode="after")
    def _parts_agree(self) -> Transcription:
        teacher = self.teacher
        if teacher.file is not None and (self.federated or self.protect == "labels"):
            raise ValueError(
                "teacher.file is one teacher that was trained elsewhere. Set federated=false, and protect=data or "
                "answers"
            )
        if self.generator.discriminator == "teacher" and (
            self.federated or teacher.architecture == "linear" or teacher.file is not None
        ):
            raise ValueError(
                "generator.discriminator=teacher needs one teacher that is a network trained here. Use student"
            )
        if teacher.architecture == "linear" and self.student.architecture != "scattering":
            raise ValueError(
                "teacher.architecture=linear is a head on public layers, and the student's are trained. Set "
                "student.architecture=scattering"
            )
        if self.per_task is not None and not self.federated:
            raise ValueError(f"per_task={self.per_task} has no meaning for one teacher. Set per_task=null")
        return self

    @property
    def samples(self) -> int:
        """Number of annotated samples: bT."""
        return self.iterations * self.batch

    @property
    def gaussian_releases(self) -> int:
        """Number of vectors of sensitivity 2β (protect=data): T if the norm is a batch's, bT if it is a sample's."""
        return self.iterations if self.annotation.norm == "batch" else self.samples

    @property
    def unprotected(self) -> bool:
        """True if the run has no guarantee: NOT PRIVATE."""
        return self.noise == "none" or self.generator.discriminator == "teacher"

    def coordinates(self, classes: int) -> int:
        """Return the number of values that get protective Gaussian noise: bTc."""
        return 0 if self.protect != "data" or self.unprotected else self.samples * classes

    def check(self, run: Any) -> None:
        """Raise ValueError if other sections of the run do not allow these settings."""
        if run.data.name == "table":
            raise ValueError("data.name=table has no images that a generator could make. Use a dataset of images")
        if not isinstance(run.data.size, int):
            raise ValueError(
                f"a generator makes square images, and data.size={list(run.data.size)}. Set data.size to one number"
            )
        budget = run.ledger.epsilon
        if not self.teacher.anyone_may_know:
            self._check_private_file(budget, run.ledger.account, bool(run.tracking.private_metrics))
        if self.unprotected and not (run.data.public_benchmark and budget is None):
            what = "noise=none" if self.noise == "none" else "generator.discriminator=teacher"
            raise ValueError(
                f"transcription.{what} guarantees nothing, and no budget can pay for it. It is for public benchmarks, "
                "with ledger.epsilon=null"
            )
        if self.protect == "labels" and run.privacy.unit != "record":
            raise ValueError(
                f"privacy.unit={run.privacy.unit} does not go with transcription.protect=labels, which protects the "
                "label of one record. Set privacy.unit=record"
            )
        if self.protect == "labels" and self.federated and run.partition.reads_labels:
            raise ValueError(
                "partition.kind reads labels before they are randomised. Use iid or party with "
                "transcription.protect=labels"
            )

    def _check_private_file(self, budget: float | None, account: str | None, private_metrics: bool) -> None:
        what = "transcription.teacher.file may have been trained on private data"
        otherwise = "(transcription.teacher.public=true only if anyone may read them)"
        if budget is None or account is None:
            raise ValueError(
                f"{what}, which needs a separate budget: set ledger.account to a name for these data, and "
                f"ledger.epsilon {otherwise}"
            )
        if self.unprotected or self.noise != "secure":
            raise ValueError(f"{what}: use noise=secure and a mechanism with a guarantee {otherwise}")
        if private_metrics:
            raise ValueError(f"{what}: set tracking.private_metrics=false {otherwise}")
