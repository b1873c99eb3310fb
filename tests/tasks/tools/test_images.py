"""Contact sheets and image sets outside a run."""

import numpy as np
from PIL import Image

from tasks.tools.images import write_set, write_sheet
from terrine.synthetic.program import draw
from terrine.synthetic.shards import stretches


def test_a_sheet_is_a_png_of_the_images(tmp_path):
    path = tmp_path / "new" / "sheet.png"
    sheet = write_sheet(path, "gaussian", count=6, seed=0, size=8, channels=3, device="cpu")
    assert np.array_equal(np.asarray(Image.open(path)), sheet)
    first = draw("gaussian", seed=0, first=0, count=1, size=8, channels=3)[0]
    assert np.array_equal(sheet[:80:10, :80:10], first.permute(1, 2, 0).numpy())


def test_a_set_is_written_once_and_its_shards_are_kept(tmp_path):
    parts = stretches("shaders", count=30, seed=0, size=12, channels=1, shard=8)
    seen = []
    cost = write_set(tmp_path / "one", parts, progress=seen.append)
    assert (cost.images, cost.kept, len(seen)) == (30, 0, 4)
    assert write_set(tmp_path / "one", parts).kept == 4
