"""torchvision and timm can be imported with a CPU-only torch."""

import subprocess
import sys

import pytest
import torch

from terrine import vision


def test_a_fresh_process_imports_torchvision_and_timm_on_demand_and_without_a_warning():
    program = (
        "import sys, terrine.vision\n"
        "print(sorted({'torchvision', 'timm'} & set(sys.modules)))\n"
        "from terrine.vision import timm, torchvision\n"
        "print(timm.create_model('resnet10t').num_classes, torchvision.models.resnet18().fc.out_features)\n"
    )
    command = [sys.executable, "-W", "error::UserWarning", "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "[]\n1000 1000\n"), result.stderr


def test_transforms_work_once_imported():
    image = torch.rand(1, 3, 8, 8)
    flipped = vision.torchvision.transforms.functional.hflip(image)
    assert torch.equal(flipped, image.flip(-1))


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="keras"):
        _ = vision.keras
