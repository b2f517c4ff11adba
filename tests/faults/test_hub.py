"""Random faults of the network. A tenth of all requests to a loopback hub go wrong, and the results of builds are the same as without
faults.

A failure prints its seed, and can be repeated with `NIELS_CACHE_FAULT_SEED=n pytest tests/faults/test_hub.py`. The seed decides which
requests go wrong, and how. Requests of a shuffled stream come from several threads, so their order may differ.
"""

import itertools
import os
from pathlib import Path

import pytest

from tests.helpers.hub_builds import Build, build_from
from tests.helpers.hub_repositories import card, dolly_rows, json_lines, parquet
from tests.helpers.loopback_faults import ByName, Faults, at_random
from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.tiny import sentences

SHARE = 0.1
ROWS = [{"text": text} for text in sentences(200)]


def repositories() -> dict[str, dict[str, bytes]]:
    readme = {"README.md": card({"default": {"train": "data/*"}})}
    texts = {
        "parquet": {f"data/train-{file}.parquet": parquet(ROWS[file::4], row_group_size=20) for file in range(4)},
        "json": {f"data/train-{file}.jsonl": json_lines(ROWS[file::4]) for file in range(4)},
        "text": {f"data/train-{file}.txt": "\n".join(row["text"] for row in ROWS[file::4]).encode() for file in range(4)},
    }
    return {**{name: {**readme, **files} for name, files in texts.items()}, "chat": {"chat.jsonl": json_lines(dolly_rows(40))}}


def build_many(tmp_path: Path, tiny_model: Path, *, rounds: int, seed: int) -> None:
    """Make builds of seven kinds from a hub with faults, `rounds` times. Each must equal the build from a hub without faults."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "tokenizer").symlink_to(tiny_model.parent)
    held = repositories()
    hub = LoopbackHub({f"{owner}/{name}": files for owner in ("fine", "faulty") for name, files in held.items()}, tmp_path / "hf_home")
    hub.large = (".parquet",)
    hub.plain = {f"{owner}/a.jsonl": held["json"]["data/train-0.jsonl"] for owner in ("fine", "faulty", "solid")}
    faults = Faults(at_random(SHARE, seed))
    hub.faults = ByName({"faulty": faults, "solid": faults})

    def tables(owner: str) -> list[Build]:
        web = "solid" if owner == "faulty" else owner
        common = {"source": "huggingface", "val_frac": 0.1}
        return [
            *(Build({**common, "dataset": f"{owner}/{name}", "shuffle_buffer": 30}) for name in ("parquet", "json", "text")),
            Build({**common, "dataset": f"{owner}/parquet", "shuffle_buffer": 0}),
            Build({"source": "dolly15k", "dataset": f"{owner}/chat"}),
            Build({"source": "jsonl", "files": [f"{hub.url}/files/{owner}/a.jsonl"], "val_frac": 0.1}),
            Build({"source": "jsonl", "files": [f"{hub.url}/files/{web}/a.jsonl"], "val_frac": 0.1}),
        ]

    fine, faulty = tables("fine"), tables("faulty")
    results, _ = build_from(hub, root, [*fine, *faulty * rounds])
    hub.close()
    assert len(results) == len(fine) * (rounds + 1)
    expected = [result["files"] for result in results[: len(fine)]]
    assert all(len(files) == 6 for files in expected)
    made = len(faults.made)
    for number, (result, files) in enumerate(zip(results[len(fine) :], itertools.cycle(expected), strict=False)):
        assert result.get("files") == files, f"seed {seed}, build {number}: {result.get('error', 'other files')}"
    assert made >= rounds, f"{made} faults in {len(hub.requests)} requests"
    print(f"{len(faulty) * rounds} builds, {len(hub.requests)} requests, {made} faults")


def test_faults_at_random_change_no_byte(tmp_path: Path, tiny_model: Path) -> None:
    build_many(tmp_path, tiny_model, rounds=1, seed=int(os.environ.get("NIELS_CACHE_FAULT_SEED") or 1))


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_hundred_builds_with_faults_at_random_change_no_byte(seed: int, tmp_path: Path, tiny_model: Path) -> None:
    build_many(tmp_path, tiny_model, rounds=15, seed=seed)
