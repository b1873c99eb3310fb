"""Choice of synthetic images for private data: public indicators of each source, and the accuracy at ε = 6.

    python benchmarks/choosing_images.py [--root FOLDER] [--datasets digits mnist blood pneumonia]
                                         [--sources gaussian dead_leaves ...] [--seeds 0 1 2] [--work FOLDER]
                                         [--queries N] [--teachers N] [--features 200]

For every dataset that lies under --root, and every source (image programs; `A,B` is half of each): the kernel distance
to the private images on scattering features, the teachers' agreement on the queries, the effective number of winning
classes, and the accuracy of the linear student at exact ε = 6, δ = 1e-5, with replayed noise. Seeds draw other images,
partitions and noise. Finished rows are kept in --work and not made again; the table is printed at the end.
"""

from dataclasses import replace
from functools import cache

import numpy as np
from cells import KEPT, Cells, common_options, datasets, heading, row, spread
from image_distance import image_distances, scattering_extractor
from transfer import SETTINGS, SIZE, Setting, Taught, query_images, teach, transfer

from terrine.data.dataset import Dataset
from terrine.models.architecture import build_backbone
from terrine.models.backbone import Backbone
from terrine.synthetic.program import programs

SOURCES = [*programs(), "dead_leaves,stylegan"]


def rows(
    setting: Setting, data: Dataset, sources: list[str], seeds: list[int], features: int, cells: Cells
) -> list[list[str]]:
    """Make what is missing of a dataset, and return its rows of the table, the best student first."""
    extractor = scattering_extractor(setting.channels)

    @cache
    def taught(seed: int) -> tuple[Backbone, Taught]:
        backbone = build_backbone("scattering", channels=setting.channels, size=SIZE, seed=seed, projection=features)
        return backbone, teach(data, backbone, setting.teachers, seed=seed)

    def figures(source: str, seed: int) -> dict[str, float]:
        images = query_images(source, setting.queries, setting.channels, seed=seed)
        distance = image_distances(extractor, {"": images}, data.train_images, seed=seed)[""]
        backbone, teachers = taught(seed)
        found = transfer(teachers, backbone, images, len(source.split(",")), seed=seed)
        return {"distance": distance.distance, "error": distance.standard_error, **found}

    found = {}
    for seed in seeds:
        for source in sources:
            key = f"{setting.name}, {setting.teachers} teachers, {setting.queries} queries, {features} features"
            made = cells.get(f"{key}, {source}, seed {seed}", lambda source=source, seed=seed: figures(source, seed))
            found.setdefault(source, []).append(made)
        taught.cache_clear()
    order = sorted(found, key=lambda source: -np.mean([each["accuracy"] for each in found[source]]))
    printed = {"distance": (3, 1.0), "agreement": (1, 100.0), "classes": (1, 1.0), "accuracy": (2, 100.0)}
    return [
        [
            setting.name,
            source.replace(",", " and "),
            *(spread([each[name] for each in found[source]], *how) for name, how in printed.items()),
        ]
        for source in order
    ]


def main() -> None:
    """Make the table."""
    parser = common_options(__doc__, root=datasets(), seeds=[0, 1, 2], work=KEPT)
    parser.add_argument("--datasets", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--sources", nargs="+", default=SOURCES)
    parser.add_argument("--queries", type=int, help="instead of the dataset's own number")
    parser.add_argument("--teachers", type=int, help="instead of the dataset's own number")
    parser.add_argument("--features", type=int, default=200)
    arguments = parser.parse_args()
    cells = Cells(arguments.work / "choosing-images.jsonl")
    table = []
    for name in arguments.datasets:
        own = {"queries": arguments.queries, "teachers": arguments.teachers}
        setting = replace(SETTINGS[name], **{key: value for key, value in own.items() if value is not None})
        data = setting.load(arguments.root)
        if data is None:
            print(f"{name}: not under {arguments.root}, left out", flush=True)
            continue
        table += rows(setting, data, arguments.sources, arguments.seeds, arguments.features, cells)
    heading("private data", "queries", "kernel distance", "agreement %", "winning classes", "student % at ε = 6")
    for line in table:
        row(*line)


if __name__ == "__main__":
    main()
