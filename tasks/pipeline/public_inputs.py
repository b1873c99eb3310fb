"""Facts for the privacy statement about a run's records and public inputs, as recorded by earlier stages."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tasks.artefacts.images import DRAWN_ROWS, POOL, PUBLIC_ROWS
from tasks.runtime.accounts import published_earlier
from tasks.runtime.releases import record_facts
from tasks.runtime.run import Run
from tasks.runtime.store import read_json
from terrine.files import file_digest
from terrine.privacy.facts import Examples, Facts, Unprotected, origin_of
from terrine.privacy.statement import PublicInput


def describe_records(run: Run) -> dict[str, Any]:
    """Return the arguments `facts` and `public_inputs` of a run's statement, from the manifests of its stages."""
    path = run.folders.images / "manifest.json"
    images, backbone = read_json(path), read_json(run.folders.backbone / "manifest.json")
    counts: Counter[str] = Counter()
    for shard in images["shards"]["queries"]:
        counts[shard["kind"]] += shard["count"]
    pool = "public dataset" if run.params.data.public_benchmark else "own images"
    real = {PUBLIC_ROWS: "own rows", DRAWN_ROWS: "drawn rows", POOL: pool}
    programs = sum(count for kind, count in counts.items() if kind not in real)
    found = {"programs": programs} | {real[kind]: counts[kind] for kind in real}
    unasked = sum(shard["count"] for shard in images["shards"].get("unlabelled", ()))
    declared = {"own rows": images.get("declared", 0), pool: counts[POOL] + unasked}
    declared["published earlier"] = published_earlier(run)
    examples = tuple(Examples(origin, count) for origin, count in found.items() if count)  # type: ignore[arg-type]
    facts = Facts(
        examples=examples,
        unprotected=tuple(Unprotected(why, count) for why, count in declared.items() if count),  # type: ignore[arg-type]
        **record_facts(run.params),
    )
    drawn = f" ({', '.join(sorted(counts.keys() - real.keys()))}; seed {images['seed']})" if programs else ""
    inputs = (
        PublicInput(
            name="query rows" if "columns" in images else "query images",
            origin=origin_of(examples) + drawn,
            digest=file_digest(path),
        ),
        PublicInput(name="backbone", origin=f"{backbone['kind']}: {backbone['origin']}", digest=backbone["sha256"]),
    )
    return {"facts": facts, "public_inputs": inputs}
