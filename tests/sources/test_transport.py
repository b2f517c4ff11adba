"""The transport below the hub's library and web files, over servers that are functions."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from huggingface_hub.utils import hf_raise_for_status, httpx

from niels_cache_assets.sources.errors import SourceUnavailableError
from niels_cache_assets.sources.hub.errors import hub_errors
from niels_cache_assets.sources.huggingface import Huggingface
from niels_cache_assets.sources.net import retries as network
from niels_cache_assets.sources.net import transport
from niels_cache_assets.sources.reading.files import SourceFile, file_errors
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.remote import store
from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.messages import missing
from tests.helpers.read_sources import read

CONTENT = bytes(range(256)) * 40
CUT = 3000  # bytes after which bodies of `breaking` break


class _Pieces(httpx.SyncByteStream):
    def __init__(self, body: bytes, breaks: bool) -> None:
        self._body, self._breaks = body, breaks

    def __iter__(self) -> Iterator[bytes]:
        end = CUT if self._breaks else len(self._body)
        for start in range(0, end, 500):
            yield self._body[start : min(start + 500, end)]
        if self._breaks and len(self._body) > CUT:
            raise httpx.ReadError("gone")


def breaking(requests: list[str], *, tags: list[str | None], ranges: bool) -> Callable[[httpx.Request], httpx.Response]:
    """A server of CONTENT whose first answer breaks. `tags`: the ETag of each answer, the last for all further ones."""

    def answer(request: httpx.Request) -> httpx.Response:
        asked = request.headers.get("Range", "")
        requests.append(asked)
        tag = tags[min(len(requests), len(tags)) - 1]
        headers = {"ETag": tag} if tag else {}
        start = int(asked.removeprefix("bytes=").partition("-")[0] or 0) if ranges else 0
        body = CONTENT[start:]
        headers |= {"Content-Length": str(len(body)), **({"Accept-Ranges": "bytes"} if ranges else {})}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}"
        return httpx.Response(206 if start else 200, headers=headers, stream=_Pieces(body, breaks=len(requests) == 1))

    return answer


def client(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.Client:
    return transport.with_retries(httpx.Client(transport=httpx.MockTransport(answer)))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(network, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(network, "LONGEST_WAIT", 0.01)
    with network.retry_for(60):
        yield


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("whole_bytes", [100, 1 << 20])
def test_a_body_that_breaks_goes_on_at_its_byte_or_is_read_again_up_to_there(
    whole_bytes: int, ranges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "WHOLE_BYTES", whole_bytes)
    requests: list[str] = []
    assert client(breaking(requests, tags=['"a"'], ranges=ranges)).get("http://example.test/a").content == CONTENT
    assert len(requests) == 2
    assert not ranges or requests == ["", f"bytes={CUT}-"]


@pytest.mark.parametrize(("first", "then"), [("200", "200"), ("200", "206"), ("206", "206"), ("known", "200"), ("known", "206")])
def test_a_body_without_a_length_that_ends_early_goes_on_at_its_byte(first: str, then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "WHOLE_BYTES", 100)
    requests: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(asked := request.headers.get("Range", ""))
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        headers = {"ETag": '"a"', **({"Accept-Ranges": "bytes"} if then == "206" else {})}
        if part := asked and then == "206":
            headers["Content-Range"] = f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}"
        elif not asked and first == "200":
            headers["X-Linked-Size"] = str(len(CONTENT))  # a length that nothing below us compares
        end = CUT * len(requests) if len(requests) < 3 else len(CONTENT)
        return httpx.Response(206 if part else 200, headers=headers, stream=_Pieces(CONTENT[start if part else 0 : end], breaks=False))

    headers = {"Range": f"bytes=0-{len(CONTENT) - 1}"} if first == "206" else {}
    extensions = {"validator": transport.FileVersion("a", len(CONTENT))} if first == "known" else {}
    assert client(answer).get("http://example.test/a", headers=headers, extensions=extensions).content == CONTENT
    assert len(requests) == 3


@pytest.mark.parametrize("media_type", ["application/jsonl", "application/json; charset=utf-8"])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_file_that_its_server_calls_json_need_not_be_json(media_type: str, ranges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = b'{"a": 1}\n{"a": 2}\n'

    def answer(request: httpx.Request) -> httpx.Response:
        start, end = 0, len(lines)
        if asked := transport.range_of(request):
            start, end = asked[0], min(len(lines), len(lines) if asked[1] is None else asked[1] + 1)
        headers = {"ETag": '"a"', "Content-Type": media_type}
        if ranges and asked:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(lines)}"
            return httpx.Response(206, headers=headers, content=lines[start:end])
        return httpx.Response(200, headers=headers, content=lines)

    monkeypatch.setattr(transport, "_client", lambda process: client(answer))
    with network.retry_for(0.1), transport.HttpFiles().open("http://example.test/a.jsonl") as file:
        assert file.read() == lines
    with network.retry_for(0.1):
        assert not ranges or client(answer).get("http://example.test/a.json", headers={"Range": "bytes=0-4"}).content == lines[:5]


def test_an_answer_of_an_api_that_is_no_json_is_asked_for_again() -> None:
    bodies = [b'{"a": ', b'{"a": 1}']
    answer = lambda request: httpx.Response(200, headers={"Content-Type": "application/json; charset=utf-8"}, content=bodies.pop(0))  # noqa: E731
    assert client(answer).get("http://example.test/api").json() == {"a": 1}


def test_a_server_without_ranges_that_always_cuts_at_the_same_byte_ends_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "WHOLE_BYTES", 100)
    monkeypatch.setattr(transport, "STALL_BYTES", CUT // 2)
    asked = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        assert asked < 1000, "it would never end"
        return httpx.Response(200, headers={"ETag": '"a"', "Content-Length": str(len(CONTENT))}, stream=_Pieces(CONTENT, breaks=True))

    with network.retry_for(0.1), pytest.raises(SourceUnavailableError, match=r"ReadError: gone, \d+ tries"):
        client(answer).get("http://example.test/a")
    assert asked > 1


@pytest.mark.parametrize("ranges", [True, False])
def test_a_file_that_changed_in_the_middle_is_an_error_and_never_a_mix(ranges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "WHOLE_BYTES", 100)
    with pytest.raises(NielsCacheError, match=r"file changed .*run the build"):
        client(breaking([], tags=['"a"', '"b"'], ranges=ranges)).get("http://example.test/a")


@pytest.mark.parametrize("part", ["", "bytes=100-399"])
@pytest.mark.parametrize("tag", ['"a"', None])
def test_a_body_that_is_complete_is_not_asked_for_again_although_its_last_bytes_came_late(
    tag: str | None, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "STALL_SECONDS", 0)  # each body of fewer bytes than STALL_BYTES is late
    requests: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(asked := request.headers.get("Range", ""))
        headers = {"Accept-Ranges": "bytes", **({"ETag": tag} if tag else {})}
        if not asked:
            return httpx.Response(200, headers={**headers, "Content-Length": "400"}, stream=_Pieces(CONTENT[:400], breaks=False))
        if asked != part:
            return httpx.Response(416, headers={"Content-Range": "bytes */400"})
        return httpx.Response(
            206, headers={**headers, "Content-Range": "bytes 100-399/400"}, stream=_Pieces(CONTENT[100:400], breaks=False)
        )

    body = client(answer).get("http://example.test/a", headers={"Range": part} if part else {}).content
    assert body == CONTENT[100 if part else 0 : 400]
    assert requests == [part]


def test_a_large_body_that_nothing_tells_the_version_of_is_not_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "WHOLE_BYTES", 100)
    with pytest.raises(SourceUnavailableError, match="gives no version"):
        client(breaking([], tags=[None], ranges=False)).get("http://example.test/a?key=secret")


def test_a_time_to_come_back_is_understood_as_a_date_too() -> None:
    asked = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        later = datetime.now(UTC) + timedelta(hours=1)
        return httpx.Response(503, headers={"Retry-After": format_datetime(later, usegmt=True)})

    with pytest.raises(SourceUnavailableError, match=r"http://example\.test/a: HTTP 503, one try, .* 3[56]\d\d s"):
        client(answer).get("http://user:password@example.test/a?key=secret")
    assert asked == 1


@pytest.mark.parametrize("value", ["\xb2", "9" * 5000, "1 Jan 99999999999 00:00:00", "Mon, 99 Foo"])
@pytest.mark.parametrize("header", ["Content-Length", "X-Linked-Size", "Retry-After"])
def test_numbers_of_headers_that_are_none_say_nothing(header: str, value: str) -> None:
    response = httpx.Response(200, headers=[(header.encode(), value.encode("latin-1"))])
    assert transport.validator_of(response).size is None
    assert transport.retry_after(response) is None


@pytest.mark.parametrize("value", ["10m", "nan", "inf", "-1"])
def test_a_patience_that_is_no_number_of_seconds_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(network.RETRY_VARIABLE, value)
    with pytest.raises(NielsCacheError, match=f"NIELS_CACHE_NETWORK_PATIENCE='{value}' .*seconds"), network.retry_for(1):
        pass


def test_a_host_that_has_never_answered_is_soon_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(network.RETRY_VARIABLE, raising=False)
    monkeypatch.setattr(network, "BRIEF_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(network, "FIRST_WAIT", 0.0)
    monkeypatch.setattr(network, "ANSWERED", {"known.test"})

    def fail(host: str) -> None:
        network.RequestRetries(f"http://{host}/a").wait_after_failure("Name or service not known")

    with network.retry_for(60):
        fail("known.test")
        with pytest.raises(SourceUnavailableError, match=r"never\.test.* not known, one try"):
            fail("never.test")
    with network.retry_for(60, is_known=True):  # a part, whose plan was made with answers of the host
        fail("never.test")


def test_a_server_that_redirects_for_ever_is_no_matter_of_the_network_at_the_hub_or_elsewhere() -> None:
    def loop(request: httpx.Request) -> httpx.Response:
        return httpx.Response(302, headers={"Location": "/loop?key=secret"})

    def get() -> None:
        client(loop).get("http://example.test/a", follow_redirects=True)

    for block, who in ((hub_errors("a/b", None), "hub"), (file_errors(SourceFile("http://example.test/a", "a")), "server")):
        with pytest.raises(NielsCacheError) as caught, block:
            get()
        assert missing(caught.value, f"the {who} redirects", " http://example.test/loop; ") == []
        assert not isinstance(caught.value, SourceUnavailableError)


@pytest.mark.parametrize(
    ("status", "code", "revision", "expected"),
    [
        (400, "", None, r"a/b: .* HTTP 400 \(first \*\*\* second\); see .*"),
        (451, "", None, r"a/b: .* HTTP 451 \(first \*\*\* second\); see .*"),
        (404, "RevisionNotFound", None, "a/b: .*newest commit; .*pinned_revision"),
        (404, "RevisionNotFound", "v2", "a/b: .*'v2'; see .* leave pinned_revision out"),
    ],
)
def test_what_the_hub_answers_is_told_with_its_reason(status: int, code: str, revision: str | None, expected: str) -> None:
    headers = {"X-Error-Code": code} if code else {}
    request = httpx.Request("GET", "https://huggingface.co/api/datasets/a/b")
    answer = httpx.Response(status, headers=headers, json={"error": "first hf_aSecretToken123\nsecond"}, request=request)
    with pytest.raises(NielsCacheError) as caught, hub_errors("a/b", revision):
        hf_raise_for_status(answer)
    assert re.fullmatch(expected, str(caught.value)), caught.value


@pytest.mark.parametrize(("said", "size"), [({}, 0), ({"Content-Range": "bytes */0"}, 0), ({"Content-Range": "bytes */12345"}, None)])
def test_a_file_is_empty_where_the_server_does_not_say_otherwise(
    said: dict[str, str], size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_client", lambda process: client(lambda request: httpx.Response(416, headers=said)))
    with nullcontext() if size == 0 else pytest.raises(NielsCacheError, match="HTTP 416"):
        assert transport.HttpFiles().info("http://example.test/a")["size"] == size


def test_the_hubs_library_does_not_log_an_address_with_its_secrets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hub = LoopbackHub({}, tmp_path)
    hub.plain["damaged.parquet"] = b"PAR1xxxxxxxxxxxPAR1"
    monitored = logging.getLogger("datasets")
    monitored.addHandler(caplog.handler)
    url = f"{hub.url}/files/damaged.parquet?signature=secret"
    with pytest.raises(NielsCacheError, match="damaged") as caught:
        read(Huggingface(dataset="a/b", files=[url]))
    monitored.removeHandler(caplog.handler)
    hub.close()
    assert "secret" not in str(caught.value) + caplog.text
