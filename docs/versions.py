"""Put a built site beside the versions that are published: `python -m docs.versions SITE PUBLISHED VERSION`.

PUBLISHED holds one folder for each version, and versions.json, from which the pages show a menu (the form of `mike`).
The newest release is also `latest`, and the address of the site leads to it; before the first release it leads to `main`.
"""

import json
import shutil
import sys
from pathlib import Path

LATEST = "latest"


def number_of(version: str) -> tuple[int, ...] | None:
    """Return 0.10.2 as (0, 10, 2), or None for a name such as `main`."""
    parts = version.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else None


def publish(site: Path, published: Path, version: str) -> None:
    """Replace the folder of `version` by `site`, and write versions.json and the page that leads to the newest release."""
    shutil.rmtree(published / version, ignore_errors=True)
    shutil.copytree(site, published / version)
    folders = {path.name for path in published.iterdir() if (path / "index.html").is_file()} - {LATEST}
    releases = sorted((name for name in folders if number_of(name)), key=lambda name: number_of(name) or (), reverse=True)
    newest = releases[0] if releases else version
    listed = [
        {"version": name, "title": name, "aliases": [LATEST] if name == newest else []}
        for name in [*releases, *sorted(folders - {*releases})]
    ]
    (published / "versions.json").write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(published / LATEST, ignore_errors=True)
    shutil.copytree(published / newest, published / LATEST)
    (published / "index.html").write_text(f'<meta http-equiv="refresh" content="0; url={LATEST}/">\n', encoding="utf-8")
    (published / ".nojekyll").touch()


if __name__ == "__main__":
    publish(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
