"""Masks for personal data and secrets: the table of what is masked and what stays, counts, examples, and the key in a corpus."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from niels_cache_assets.base.documents import Document
from niels_cache_assets.cleaning.report import MASK_EXAMPLES, CleaningReport
from niels_cache_assets.cleaning.settings import MASKS, NORMALIZERS, REASONS, CleaningSettings
from niels_cache_assets.cli import main
from niels_cache_cleaning.chain import Cleaner
from niels_cache_cleaning.masks import mask, mask_examples

UNSKIPPABLE = {"empty", "unreadable"}
ANY_TEXT = tuple(name for name in (*REASONS, *NORMALIZERS) if name not in UNSKIPPABLE)


def secret(*parts: str) -> str:
    """Join the parts of an invented secret, so that no scanner of secrets finds it in this file."""
    return "".join(parts)


LETTERS = "Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8Qr9St0Uv1Wx2Yz3"
TABLE = {  # kind: (text, what is masked in it)
    "email": [
        ("write to jo@web.org today", "jo@web.org"),
        ("Jo.Ann+news%2@mail.web-site.co.uk.", "Jo.Ann+news%2@mail.web-site.co.uk"),
        ("<jürgen@beispiel.de>", "jürgen@beispiel.de"),
        ("mailto:a_b-c@x1.io?subject=hi", "a_b-c@x1.io"),
        ("(a@b.cd,e)", "a@b.cd"),
    ],
    "ip": [
        ("from 93.184.216.34:8080", "93.184.216.34"),
        ("at 8.8.8.8.", "8.8.8.8"),
        ("host 2606:4700:4700::1111 answered", "2606:4700:4700::1111"),
        ("[2a00:1450:4001:082b:0000:0000:0000:200e]", "2a00:1450:4001:082b:0000:0000:0000:200e"),
    ],
    "phone": [
        ("call +49 (0)30 1234-5678 now", "+49 (0)30 1234-5678"),
        ("call +1 212 555 0123.", "+1 212 555 0123"),
        ("call +442071234567", "+442071234567"),
        ("call +49 12345 or", "+49 12345"),
        ("call +123 4567 8901 2345 or", "+123 4567 8901 2345"),
        ("call (212) 555-0123 or", "(212) 555-0123"),
        ("call 212-555-0123, then", "212-555-0123"),
        ("call 1-800-555-0199", "1-800-555-0199"),
        ("Tel.: 030 123456-78", "030 123456-78"),
        ("Fax 089/1234567", "089/1234567"),
    ],
    "key": [
        ("id AKIA" + "IOSFODNN7EXAMPLE here", secret("AKIA", "IOSFODNN7EXAMPLE")),
        (f"token {secret('gh', 'p_')}{LETTERS}", secret("gh", "p_") + LETTERS),
        (f"{secret('github', '_pat_')}{LETTERS}{LETTERS}", secret("github", "_pat_") + LETTERS * 2),
        (f"{secret('gl', 'pat-')}{LETTERS[:20]}", secret("gl", "pat-") + LETTERS[:20]),
        (f"{secret('sk', '-proj-')}{LETTERS}", secret("sk", "-proj-") + LETTERS),
        (f"{secret('sk', '_live_')}{LETTERS[:24]}", secret("sk", "_live_") + LETTERS[:24]),
        (f"{secret('xo', 'xb-')}123456789012-{LETTERS[:12]}", secret("xo", "xb-") + f"123456789012-{LETTERS[:12]}"),
        (f"{secret('AI', 'za')}{LETTERS[:35]}", secret("AI", "za") + LETTERS[:35]),
        (f"{secret('h', 'f_')}{LETTERS[:34]}", secret("h", "f_") + LETTERS[:34]),
        (
            "eyJ" + "hbGciOiJIUzI1NiJ9.eyJ" + "zdWIiOiIxMjM0In0.abcDEF_123-456",
            "eyJ" + "hbGciOiJIUzI1NiJ9.eyJ" + "zdWIiOiIxMjM0In0.abcDEF_123-456",
        ),
        ("password = 'hunter2hunter2'", "hunter2hunter2"),
        ('"api_key": "0123456789abcdef"', "0123456789abcdef"),
        (
            f"a -----BEGIN RSA {secret('PRIVATE', ' KEY')}-----\n{'MIIEow' * 20}\n-----END RSA {secret('PRIVATE', ' KEY')}----- b",
            f"-----BEGIN RSA {secret('PRIVATE', ' KEY')}-----\n{'MIIEow' * 20}\n-----END RSA {secret('PRIVATE', ' KEY')}-----",
        ),
    ],
}
STAYS = [
    "a tweet to @someone, and a@b without a domain",
    "icon@2x.png is an image, and x@ y.org is none",
    "the loopback is 127.0.0.1, the router 192.168.0.1, the mask 255.255.255.0, the example 192.0.2.7",
    "version 1.2.3.4 and v1.2.3.4 and 1.2.3.4.5 and 300.1.2.3 and section 3.2.1.4",
    "at 12:30:45, std::vector<int> and a::b, and 2001:db8::1 of the documentation",
    "in 1914-1918, 2,000,000 of 12.345.678 came on 2024-01-31 at 10:00",
    "ISBN 978-3-16-148410-0, and 1234567890123456",
    "+ 3 apples, 3+4 and +5 points; 10+20 30",
    "+49 1234 is too short, +123 4567 8901 23456 is too long",
    "the word telephone, and a cell of 5 by 7",
    "risk-free and sk-learn-style-names-of-modules, monkey_live_test",
    "password = get_password(), password: ******** and api_key = None",
    "the keyword password is required",
    "AKIA and eyJ alone are short",
]


@pytest.mark.parametrize(("kind", "text", "masked"), [(kind, *row) for kind, rows in TABLE.items() for row in rows])
def test_what_is_masked(kind: str, text: str, masked: str) -> None:
    for kinds in ([kind], list(MASKS)):
        made, places = mask(text, kinds)
        assert made == text.replace(masked, f"[{kind}]")
        assert [(place.kind, text[place.start : place.end]) for place in places] == [(kind, masked)]
    assert mask(text, [each for each in MASKS if each != kind])[0] == text


@pytest.mark.parametrize("text", STAYS)
def test_what_stays(text: str) -> None:
    assert mask(text, MASKS) == (text, [])


ANY_PIECE = st.one_of(st.sampled_from([row[n] for rows in TABLE.values() for row in rows for n in (0, 1)] + STAYS), st.text(max_size=20))


@given(st.lists(st.tuples(ANY_PIECE, st.sampled_from(["", " ", "-", ".", "@", ",", ":", "'", "password='"])), max_size=6))
@example([("8.8.8.8", "-"), ("8.8.4.4", "-"), ("9.9.9.9", "")])
@example([("jo@web.org", ""), (f"-----BEGIN {secret('PRIVATE', ' KEY')}-----{'MIIEow' * 20}-----END {secret('PRIVATE', ' KEY')}-----", "")])
@example([("call +49 (0)30 1234-5678 now", "password='"), ("jo@web.org", ""), ("8.8.8.8", "'")])
def test_masking_a_masked_text_changes_nothing(pieces: list[tuple[str, str]]) -> None:
    text = "".join(piece + separator for piece, separator in pieces)
    made, places = mask(text, MASKS)
    assert mask(made, MASKS) == (made, [])
    rebuilt, end = "", 0
    for place in places:
        assert place.start >= end
        rebuilt += text[end : place.start] + f"[{place.kind}]"
        end = place.end
    assert rebuilt + text[end:] == made


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("8.8.8.8-8.8.4.4", "[ip]-[ip]"),
        ("8.8.8.8-8.8.4.4-9.9.9.9 and 10.0.0.1-8.8.8.8", "[ip]-[ip]-[ip] and 10.0.0.1-[ip]"),
        (f"{secret('h', 'f_')}{LETTERS[:34]}-8.8.8.8", "[key]-[ip]"),
        (f"a@b.org-----BEGIN {secret('PRIVATE', ' KEY')}-----{'MIIEow' * 20}-----END {secret('PRIVATE', ' KEY')}-----", "[email][key]"),
    ],
)
def test_each_of_two_places_beside_each_other_is_masked(text: str, masked: str) -> None:
    assert mask(text, MASKS)[0] == masked


HOSTILE = "a@~a.~1.2.3.~+1 ~1-~ab:~2001:~eyJaaaaaaaaa.~sk-~-----BEGIN PRIVATE KEY-----~password='~tel 1 ~@a.b~8.8.8.8-"


@pytest.mark.parametrize("piece", HOSTILE.split("~"))
def test_hostile_text_takes_time_for_its_length_only(piece: str) -> None:
    """A quadratic search would not end here."""
    mask(piece * (200_000 // len(piece)), MASKS)


def test_a_report_counts_places_of_documents_that_stay() -> None:
    cleaner = Cleaner(CleaningSettings(skip=ANY_TEXT, mask=("email", "phone")))
    reports = [CleaningReport(7, first) for first in (0, 3)]
    texts = ["a@b.org and c@d.org", "nothing", "call +1 212 555 0123", "x@y.org", "8.8.8.8", " "]
    cleaned = [cleaner.clean(Document(text), reports[number // 3]) for number, text in enumerate(texts)]
    assert [each.text for each in cleaned if isinstance(each, Document)] == [
        "[email] and [email]",
        "nothing",
        "call [phone]",
        "[email]",
        "8.8.8.8",
    ]
    reports[0].merge(reports[1])
    again = CleaningReport.from_state(reports[0].state())
    for report in (reports[0], again):
        assert report.masked == {"email": 3, "phone": 1}
        assert report.masked_documents == 3
        assert [(each["kind"], each["form"]) for each in report.mask_examples()] == [
            ("email", "a@a.aaa"),
            ("email", "a@a.aaa"),
            ("phone", "+9 999 999 9999"),
        ]
    assert "masked" not in CleaningReport(7).state()


def test_examples_are_few_and_show_no_personal_data() -> None:
    report = CleaningReport(1)
    cleaner = Cleaner(CleaningSettings(skip=ANY_TEXT, mask=MASKS))
    for number in range(100):
        cleaner.clean(
            Document(f"Dear reader, write to joan{number}@example.org or sue@example.org, or call +1 212 555 {number:04}."), report
        )
    shown = report.mask_examples()
    assert len(shown) == 2 * MASK_EXAMPLES
    assert not re.search("joan|sue|example|555", str(shown))
    assert all("Dear reader" in each["before"] for each in shown if each["kind"] == "email")


def test_examples_end_at_the_next_place() -> None:
    text = "a@b.org, c@d.org"
    assert mask_examples(text, mask(text, MASKS)[1]) == [{"kind": "email", "form": "a@a.aaa", "before": "", "after": ", "}]


def test_the_filters_judge_the_masked_text() -> None:
    cleaner = Cleaner(
        CleaningSettings(skip=tuple(name for name in ANY_TEXT if name != "too_short"), min_characters=20, min_words=1, mask=("email",))
    )
    result = cleaner.clean(Document("a.very.long.name.of.somebody@example.org"))
    assert not isinstance(result, Document)
    assert result.document.text == "[email]"


def test_clean_shows_the_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, text in enumerate(["a@b.org and c@d.org", "nothing", "call +1 212 555 0123", "no@where.org"]):
        (tmp_path / f"{number}.txt").write_text(text)
    (tmp_path / "niels_cache.toml").write_text(f"[cleaning]\nskip = {json.dumps(ANY_TEXT)}\nmask = {json.dumps(MASKS)}\n")
    where = ["--config", str(tmp_path / "niels_cache.toml"), "--profile", "quickstart"]
    assert main(["clean", *(str(tmp_path / f"{number}.txt") for number in range(4)), *where]) == 0
    assert "masked in 3 kept documents: email 3, phone 1" in capsys.readouterr().out


def test_titles_are_masked_too() -> None:
    result = Cleaner(CleaningSettings(skip=ANY_TEXT, mask=("email",))).clean(Document("some text", title="Mail from a@b.org"))
    assert isinstance(result, Document)
    assert result.title == "Mail from [email]"


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="email"):
        CleaningSettings(mask=("mail",))
