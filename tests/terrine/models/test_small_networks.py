"""small_cnn and cryptonet, and the backbone of a table."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

from terrine.errors import InputError, SettingError
from terrine.models.files import load_backbone, save_backbone
from terrine.models.identity import ColumnsBackbone
from terrine.models.registry import build_backbone
from terrine.models.statistics import has_batch_norm


@pytest.mark.parametrize(("kind", "features"), [("small_cnn", 128), ("cryptonet", 100)])
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 9), (1, 28), (3, 33)])
def test_they_take_every_size(kind, features, channels, size):
    backbone = build_backbone(kind, channels=channels, size=size, seed=0)
    images = torch.rand(3, channels, size, size)
    assert backbone.features(images, "current").shape == (3, features)
    assert has_batch_norm(backbone) == (kind == "small_cnn")


def test_cryptonet_averages_without_counting_padding():
    network = build_backbone("cryptonet", channels=1, size=8, seed=0).network
    image = torch.rand(1, 1, 8, 8)
    with torch.no_grad():
        maps = F.relu(F.conv2d(image, network[0].weight, network[0].bias, stride=2, padding=2))
        averaged = network[2](maps)
    for row in range(4):
        for column in range(4):
            rows = slice(max(row - 1, 0), row + 2)
            columns = slice(max(column - 1, 0), column + 2)
            torch.testing.assert_close(averaged[0, :, row, column], maps[0, :, rows, columns].mean(dim=(1, 2)))


def test_weights_are_those_of_the_seed_from_any_number_of_threads():
    expected = [build_backbone("small_cnn", channels=1, size=8, seed=seed).network[0].weight for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda seed: build_backbone("small_cnn", channels=1, size=8, seed=seed), range(8)))
    assert all(torch.equal(b.network[0].weight, weight) for b, weight in zip(built, expected, strict=True))


def test_columns_leave_rows_as_they_are_and_survive_a_file(tmp_path):
    backbone = build_backbone("columns", channels=5, size=1, seed=0)
    rows = torch.randn(4, 5)
    path = tmp_path / "backbone.safetensors"
    save_backbone(backbone, path)
    for each in (backbone, load_backbone(path)):
        assert isinstance(each, ColumnsBackbone)
        assert each.feature_dim == 5
        for statistics in ("current", "original"):
            assert torch.equal(each.features(rows, statistics), rows)


def test_rows_of_another_table_are_refused():
    with pytest.raises(InputError, match=r"rows of shape \(B, 5\) and was given torch\.float32 \(2, 4\)"):
        ColumnsBackbone(5).features(torch.zeros(2, 4), "original")
    with pytest.raises(InputError, match="was given torch"):
        ColumnsBackbone(5).features(torch.zeros(2, 5, dtype=torch.uint8), "original")
    with pytest.raises(SettingError, match="At least one is needed"):
        ColumnsBackbone(0)
