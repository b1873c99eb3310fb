"""What speaks against data, before any of it is decoded: classes that hardly anybody will learn, files of odd kinds."""

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
"""A class is named that has less than this share of an average class's records."""
MANY_NUMBERS = 20
"""Classes that are called by numbers from which on these may be a quantity."""
ALIKE = 0.05
"""Shapes are one where the ratios of their sides differ by less."""


@dataclass
class Remarks:
    """Sentences for the data's keeper, private: what must be mended, what should be, and what is worth knowing."""

    refusals: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def remarks_on(survey: Survey, params: Params, said: Collection[str] = ()) -> Remarks:
    """Return what there is to say of a survey of the data that the parameters name.

    said: names of classes of which it was said already that they are rare.
    """
    remarks = Remarks(refusals=list(survey.refusals), doubts=list(survey.doubts))
    _on_units(remarks, survey, params)
    _on_classes(remarks, survey, params, said)
    _on_files(remarks, survey, params)
    return remarks


def _on_units(remarks: Remarks, survey: Survey, params: Params) -> None:
    """Say where the data know more of whose records are whose than the settings."""
    records = survey.records[0]
    if params.privacy.unit != "record":
        return
    if survey.groups is not None and survey.groups[0] < records:
        of_labels = params.transcription is not None and params.transcription.protect == "labels"
        remarks.notes.append(
            f"The data say whose the {records:,} records are: {survey.groups[0]:,} groups. With privacy.unit=record ε "
            f"protects {'the label of one record' if of_labels else 'one record'}, and says little of who has several. "
            + ("No setting protects all labels of a person." if of_labels else "To protect people: privacy.unit=group.")
        )
    if survey.names < records and params.data.one_label_a_name:
        remarks.notes.append(
            f"The {records:,} training images have {survey.names:,} rows of labels: with privacy.unit=record a record "
            "is what one row speaks of, an image with all its frames, a series or a study."
        )
    elif survey.names < records:
        remarks.notes.append(
            f"The {records:,} training records have {survey.names:,} names: files of one name in several class "
            "folders count as one unit, and stay together. Give each its own name if they are different images."
        )


def _on_classes(remarks: Remarks, survey: Survey, params: Params, said: Collection[str]) -> None:
    """Name classes that hardly any teacher will see."""
    counts = dict(zip(survey.class_names, survey.train.tolist(), strict=True))
    if len(counts) < 2 and not survey.several:
        remarks.refusals.append(
            f"There is one class, {listed(list(counts))}: at least two are needed to be told apart."
        )
    missing = [name for name, count in counts.items() if count == 0]
    single = [name for name, count in counts.items() if count == 1]
    numbers = ""
    if params.data.scale is None and not survey.declared and len(counts) > MANY_NUMBERS and all(map(is_number, counts)):
        numbers = f" The label has {len(counts)} different numbers, each a class of its own. {USE_BINS}"
    if params.data.scale is not None:  # all of its classes were named beforehand
        if missing or single:
            few = listed(missing + single)
            remarks.notes.append(
                f"No training record is of {few}, or one: no student will answer so. That does no harm."
            )
    elif missing and survey.declared:
        remarks.notes.append(f"No training record is of {listed(missing)}: no teacher here will ever answer so.")
    elif missing:
        remarks.refusals.append(
            f"No training record is of {listed(missing)}, and no teacher can learn it: add records, give the split "
            f"yourself, or remove the class.{numbers}"
        )
    if single and params.data.scale is None:
        remarks.doubts.append(
            f"{listed(single)}: one training record each, too little to be learnt by anybody. Add records, or remove "
            f"the class.{'' if missing else numbers} To go on all the same: --anyway."
        )
    if numbers and not missing and not single:
        remarks.notes.append(numbers.strip())
    rare = [name for name, count in counts.items() if 1 < count < RARE * survey.train.mean() and name not in said]
    if rare:
        remarks.notes.append(
            f"Few records are of {listed(rare)} beside those of other classes: a student may answer so too seldom, "
            "and the accuracy would hardly show it. Look at the balanced accuracy, or at each class's own."
        )
    untested = [name for name, count in zip(counts, survey.test.tolist(), strict=True) if count == 0]
    if untested:
        remarks.notes.append(f"No test record is of {listed(untested)}: the accuracy says nothing about it.")


def _on_files(remarks: Remarks, survey: Survey, params: Params) -> None:
    """Say what is done with images of several kinds."""
    remarks.notes += survey.remarks
    modes = {mode for _, _, mode in survey.geometry}
    deep = sorted(mode for mode in modes if mode.startswith(("I", "F")))
    if deep and getattr(params.data, "window", None) is None:
        remarks.refusals.append(
            f"There are images of more than 8 bits per pixel ({_called(deep, survey)}): choose the range of values to "
            "show, data.window=[low, high], or save them as 8 bits."
        )
    if len(modes) > 1:
        remarks.notes.append(
            f"Images are of several modes ({', '.join(sorted(modes))}); all become "
            f"{'grey' if params.data.channels == 1 else 'colour'}."
        )
    if modes & {"RGBA", "LA", "PA"}:
        remarks.notes.append("Transparency is dropped: what lies beneath is seen. Flatten images where that matters.")
    if "CMYK" in modes:
        remarks.notes.append(
            "CMYK images are converted without a colour profile: save them as RGB where colour matters."
        )
    if "1" in modes:
        remarks.notes.append("Images of 1 bit per pixel are black and white drawings: check that they are no masks.")
    size = getattr(params.data, "size", None)
    largest = max((max(width, height) for width, height, _ in survey.geometry), default=None)
    if size and largest and largest < min(sides(size)):
        remarks.notes.append(
            f"No image is larger than {largest} pixels: data.size={largest} would say as much as {in_json(size)}, "
            "in less time."
        )
    shape = _their_shape(survey, size) if size and getattr(params.data, "fit", None) == "stretch" else None
    if size is not None and shape is not None:
        remarks.notes.append(
            f"Most images have another shape than {in_json(size)}, and are stretched: --set "
            f"'data.size={in_json(shape)}' keeps theirs, with as many pixels (docs/your-own-images.md)."
        )
    if modes == {"L"} and params.data.channels == 3:
        remarks.notes.append("All images are grey: data.channels=1 would say as much as 3, in less time.")


def _called(modes: list[str], survey: Survey) -> str:
    """Return modes, each with the first file of it, where that is known."""
    return ", ".join(f"mode {mode}" + (f", {survey.firsts[mode]}" if mode in survey.firsts else "") for mode in modes)


def _their_shape(survey: Survey, size: Size) -> Size | None:
    """Return the shape of most images, with as many pixels as `size` has; None where it is about that of `size`, or
    where no shape is that of most."""
    ratios = sorted(height / width for (width, height, _), count in survey.geometry.items() for _ in range(count))
    if not ratios:
        return None
    common, (height, width) = ratios[len(ratios) // 2], sides(size)
    alike = sum(abs(math.log(ratio / common)) < ALIKE for ratio in ratios)
    if 2 * alike <= len(ratios) or abs(math.log(common * width / height)) < 2 * ALIKE:
        return None
    return round(math.sqrt(pixels(size) * common)), round(math.sqrt(pixels(size) / common))


def listed(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    return some([f"'{name}'" for name in names])
