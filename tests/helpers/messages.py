"""The check of a message: the file or key that it names, and one keyword."""


def missing(text: object, *parts: str) -> list[str]:
    """Return the parts that are missing in a text, an error or printed output, as in `assert missing(error, "x.jsonl", "row 3", "holds") ==
    []`.
    """
    return [part for part in parts if part not in str(text)]
