"""A program that reads a description with mlcroissant. The request comes on stdin, the answer goes to stdout, and both are JSON.

tests/account/test_account.py runs this program. It imports nothing of niels-cache.
"""

import json
import sys
from typing import Any

import mlcroissant


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the complaints about the description at `path`, and the records of each record set. mlcroissant has text as bytes."""
    data = mlcroissant.Dataset(jsonld=request["path"])
    issues = data.metadata.ctx.issues
    records = {records.id: list(data.records(records.id)) for records in data.metadata.record_sets}
    return {"errors": sorted(issues.errors), "warnings": sorted(issues.warnings), "records": records}


if __name__ == "__main__":
    json.dump(answer(json.load(sys.stdin)), sys.stdout, default=lambda value: value.decode() if isinstance(value, bytes) else value.item())
