"""Views, image by image, against torchvision's own operations."""

import pytest
import torch

from terrine.pretraining.augment import Views, ViewSettings, apply_views, draw_views
from terrine.vision import torchvision

functional = torchvision.transforms.functional


def some_images(count: int, channels: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=generator)


def view_plainly(image: torch.Tensor, views: Views, i: int) -> torch.Tensor:
    """One image at a time through torchvision's functions."""
    size = image.shape[-1]
    image = image / 255
    box = [int(part[i]) for part in (views.top, views.left, views.height, views.width)]
    image = functional.resized_crop(image, *box, [size, size])
    if views.flip[i]:
        image = functional.hflip(image)
    operations = [
        lambda x: functional.adjust_brightness(x, float(views.brightness[i])),
        lambda x: functional.adjust_contrast(x, float(views.contrast[i])),
        lambda x: functional.adjust_saturation(x, float(views.saturation[i])),
        lambda x: functional.adjust_hue(x, float(views.hue[i])),
    ]
    for which in views.colour_order:
        image = operations[which](image)
    if views.grey[i] and len(image) == 3:
        image = functional.rgb_to_grayscale(image, 3)
    taps = 2 * views.blur_radius + 1
    return functional.gaussian_blur(image, [taps, taps], [float(views.sigma[i])] * 2) if taps > 1 else image


@pytest.mark.parametrize(("channels", "size"), [(3, 28), (1, 28), (3, 64), (1, 8)])
def test_views_equal_torchvisions_operations_one_by_one(channels, size):
    images = some_images(40, channels, size)
    orders = set()
    for seed in range(3):
        views = draw_views(40, size, ViewSettings(), seed=seed, device="cpu")
        orders.add(views.colour_order)
        result = apply_views(images, views)
        expected = torch.stack([view_plainly(image, views, i) for i, image in enumerate(images)])
        torch.testing.assert_close(result, expected, atol=2e-5, rtol=0)
    assert len(orders) > 1


def test_the_blur_grows_with_the_image():
    radii = [draw_views(1, size, ViewSettings(), seed=0, device="cpu").blur_radius for size in (8, 28, 64, 224)]
    assert radii == [0, 1, 3, 11]


def test_views_depend_only_on_the_seed():
    images = some_images(12, 3, 16)
    views = draw_views(12, 16, ViewSettings(), seed=5, device="cpu")
    whole = apply_views(images, views)
    assert torch.equal(whole, apply_views(images, draw_views(12, 16, ViewSettings(), seed=5, device="cpu")))
    assert not torch.equal(whole, apply_views(images, draw_views(12, 16, ViewSettings(), seed=6, device="cpu")))


def test_what_is_drawn_has_the_stated_distribution():
    count, size = 20_000, 28
    views = draw_views(count, size, ViewSettings(), seed=0, device="cpu")
    assert views.flip.float().mean() == pytest.approx(0.5, abs=0.02)
    assert views.grey.float().mean() == pytest.approx(0.2, abs=0.02)
    assert (views.brightness != 1).float().mean() == pytest.approx(0.8, abs=0.02)
    assert ((views.contrast == 1) == (views.hue == 0)).all()
    for factor in (views.brightness, views.contrast, views.saturation):
        assert 0.2 <= factor.min() < 0.25
        assert 1.75 < factor.max() <= 1.8
    assert (views.hue.abs() <= 0.2).all()
    for start, length in ((views.top, views.height), (views.left, views.width)):
        assert (start >= 0).all()
        assert (length >= 1).all()
        assert (start + length <= size).all()
        assert torch.equal(start, start.round())
    area = views.height * views.width / size**2
    assert 0.05 < area.min() < 0.1
    # Without the rejections the mean area would be (0.08 + 1) / 2; crops that do not fit are drawn again.
    assert 0.45 < area.mean() < 0.54
    ratio = views.width / views.height
    assert ratio.log().mean().abs() < 0.01


def test_crops_that_never_fit_become_the_whole_image():
    settings = ViewSettings(crop_area=(1.0, 1.0), crop_ratio=(1.3, 1.33))
    views = draw_views(5, 28, settings, seed=0, device="cpu")
    assert (views.height == 28).all()
    assert (views.width == 28).all()
    assert (views.top == 0).all()
