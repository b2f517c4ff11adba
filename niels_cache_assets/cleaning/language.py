"""Which language a text is in: Compact Language Detector 2 (Sites, 2013), whose model ships in the package `pycld2`.

Cost: tens of microseconds for 400 characters, no model to load. How it compares with others, in documents a second and in what they say
about English text: docs/log.md. Which languages stay is decided by the filters.
"""

from niels_cache_assets.cleaning.normalizers import collapse_blanks, replace_unreadable

_OLD_CODES = {"iw": "he", "jw": "jv"}  # CLD2 still uses what ISO 639-1 withdrew


def identify(text: str) -> tuple[str | None, float]:
    """(ISO 639 code, share of the text in that language), or (None, 0.0) where the text does not say: too short, or no language.

    Pass the beginning of a document; the whole text given is read. A code without its script or country: zh, not zh-Hant.
    """
    import pycld2

    encoded = collapse_blanks(replace_unreadable(text)).encode("utf-8")  # CLD2 refuses controls, surrogates and noncharacters
    _, _, ((_, code, percent, _), *_) = pycld2.detect(encoded, isPlainText=True)
    code = code.partition("-")[0]
    if not 2 <= len(code) <= 3 or code in ("un", "xx", "xxx") or code.startswith("zz"):
        return None, 0.0
    return _OLD_CODES.get(code, code), percent / 100
