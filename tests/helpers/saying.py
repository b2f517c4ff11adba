"""An object that equals every text with the given facts. Tests use it to compare whole lists of findings, lines or notes."""


class Saying:
    """An object that equals every text with these parts, as in `assert findings == [("meta.json", Saying("train_tokens", "hold 20"))]`."""

    def __init__(self, *parts: str) -> None:
        assert parts
        self.parts = parts

    def __eq__(self, text: object) -> bool:
        return isinstance(text, str) and all(part in text for part in self.parts)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Saying{self.parts}"
