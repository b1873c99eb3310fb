"""Data-quality warnings found before decoding: classes too rare to learn, unexpected file types."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from tasks.config.params import Params
from terrine.data.labels import USE_BINS, is_number
from terrine.data.source import Survey
from terrine.errors import some
from terrine.geometry import Size, in_json, pixels, sides

RARE = 1 / 5
"""Share of an average class's records below which a class is rare."""
MANY_NUMBERS = 20
"""Number of numeric class names from which they may be a quantity."""
ALIKE = 0.05
"""Tolerance on the logarithm of the ratio of sides within which shapes are equal."""


@dataclass
class Remarks:
    """Private messages for the data owner: errors (`refusals`), warnings that stop a run (`doubts`), and notes."""

    refusals: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def remarks_on(survey: Survey, params: Params, known_rare: Collection[str] = ()) -> Remarks:
    """Return the remarks on a survey of the data.

    Args:
        survey: The survey.
        params: The run's parameters.
        known_rare: Classes that other messages already call rare.
    """
    remarks = Remarks(refusals=list(survey.refusals), doubts=list(survey.doubts))
    _on_units(remarks, survey, params)
    _on_classes(remarks, survey, params, known_rare)
    _on_files(remarks, survey, params)
    return remarks


def _on_units(remarks: Remarks, survey: Survey, params: Params) -> None:
    """Note groups and shared names that the settings do not use."""
    records = survey.records[0]
    if params.privacy.unit != "record":
        return
    if survey.groups is not None and survey.groups[0] < records:
        of_labels = params.transcription is not None and params.transcription.protect == "labels"
        remarks.notes.append(
            f"The {records:,} records belong to {survey.groups[0]:,} groups. With privacy.unit=record ε protects "
            f"{'the label of one record' if of_labels else 'one record'}, not a person with several. "
            + (
                "No setting protects all labels of a person."
                if of_labels
                else "To protect people: privacy.unit=group, from the account's first release on."
            )
        )
    if survey.names < records and params.data.one_label_a_name:
        remarks.notes.append(
            f"The {records:,} training images have {survey.names:,} rows of labels. With privacy.unit=record one row "
            "is a record: an image with all its frames, a series or a study."
        )
    elif survey.names < records:
        remarks.notes.append(
            f"The {records:,} training records have {survey.names:,} names: files with the same name in several class "
            "folders count as one unit. Rename them if they are different images."
        )


def _on_classes(remarks: Remarks, survey: Survey, params: Params, known_rare: Collection[str]) -> None:
    """Warn about classes that few teachers will see."""
    counts = dict(zip(survey.class_names, survey.train.tolist(), strict=True))
    if len(counts) < 2 and not survey.several:
        remarks.refusals.append(f"There is only one class, {listed(list(counts))}. At least two are needed.")
    missing = [name for name, count in counts.items() if count == 0]
    single = [name for name, count in counts.items() if count == 1]
    numbers = ""
    if params.data.scale is None and not survey.declared and len(counts) > MANY_NUMBERS and all(map(is_number, counts)):
        numbers = f" The label has {len(counts)} different numbers, each one a class. {USE_BINS}"
    if params.data.scale is not None:  # a scale declares its classes
        if missing or single:
            remarks.notes.append(
                f"At most one training record has {listed(missing + single)}: no student will answer so."
            )
    elif missing and survey.declared:
        remarks.notes.append(f"No training record has {listed(missing)}: the student cannot learn to predict it.")
    elif missing:
        remarks.refusals.append(
            f"No training record has {listed(missing)}: add records, split the data yourself, or remove the "
            f"class.{numbers}"
        )
    if single and params.data.scale is None:
        remarks.doubts.append(
            f"{listed(single)}: one training record each, too few to learn from. Add records or remove the "
            f"class.{'' if missing else numbers} To continue: --anyway."
        )
    if numbers and not missing and not single:
        remarks.notes.append(numbers.strip())
    common = survey.train.mean()
    if rare := [name for name, count in counts.items() if 1 < count < RARE * common and name not in known_rare]:
        remarks.notes.append(
            f"Few records have {listed(rare)}, so a student may predict it too rarely. The accuracy hardly shows this: "
            "see the balanced accuracy or that of each class."
        )
    if untested := [name for name, count in zip(counts, survey.test.tolist(), strict=True) if count == 0]:
        remarks.notes.append(f"No test record has {listed(untested)}: the accuracy does not cover it.")


def _on_files(remarks: Remarks, survey: Survey, params: Params) -> None:
    """Describe how images of several kinds are converted."""
    remarks.notes += survey.remarks
    modes = {mode for _, _, mode in survey.geometry}
    deep = sorted(mode for mode in modes if mode.startswith(("I", "F")))
    if deep and getattr(params.data, "window", None) is None:
        found = ", ".join(f"mode {mode}, {survey.firsts[mode]}" if mode in survey.firsts else mode for mode in deep)
        remarks.refusals.append(
            f"Images have more than 8 bits per pixel ({found}): choose the range of values to show, "
            "data.window=[low, high], or save them with 8 bits."
        )
    if len(modes) > 1:
        remarks.notes.append(
            f"Images have several modes ({', '.join(sorted(modes))}); all become "
            f"{'grey' if params.data.channels == 1 else 'colour'}."
        )
    if modes & {"RGBA", "LA", "PA"}:
        remarks.notes.append("Transparency is dropped. Flatten the images if their hidden colours matter.")
    if "CMYK" in modes:
        remarks.notes.append("CMYK images are converted without a colour profile. Save them as RGB if colours matter.")
    if "1" in modes:
        remarks.notes.append("Images have 1 bit per pixel: check that they are not masks.")
    size = getattr(params.data, "size", None)
    largest = max((max(width, height) for width, height, _ in survey.geometry), default=None)
    if size and largest and largest < min(sides(size)):
        remarks.notes.append(
            f"No image is larger than {largest} pixels: data.size={largest} is as good as {in_json(size)}, and faster."
        )
    shape = _their_shape(survey, size) if size and getattr(params.data, "fit", None) == "stretch" else None
    if size is not None and shape is not None:
        remarks.notes.append(
            f"Most images do not have the shape {in_json(size)} and are stretched: --set "
            f"'data.size={in_json(shape)}' keeps their shape with as many pixels (docs/your-own-images.md)."
        )
    if modes == {"L"} and params.data.channels == 3:
        remarks.notes.append("All images are grey: data.channels=1 is as good as 3, and faster.")


def _their_shape(survey: Survey, size: Size) -> Size | None:
    """Return the shape of most images with as many pixels as `size`, or None if there is none or `size` has it."""
    ratios = sorted(height / width for (width, height, _), count in survey.geometry.items() for _ in range(count))
    if not ratios:
        return None
    common, (height, width) = ratios[len(ratios) // 2], sides(size)
    alike = sum(abs(math.log(ratio / common)) < ALIKE for ratio in ratios)
    if 2 * alike <= len(ratios) or abs(math.log(common * width / height)) < 2 * ALIKE:
        return None
    return round(math.sqrt(pixels(size) * common)), round(math.sqrt(pixels(size) / common))


def listed(names: list[str]) -> str:
    """Return the first names and the number of the others."""
    return some([f"'{name}'" for name in names])
