"""Bodies of requests and the text of answers, without HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.workloads._answers import (
    ApiError,
    ChatBody,
    CompletionBody,
    Job,
    Text,
    chat_job,
    completion_job,
    read_body,
)
from ascend_perf.workloads._batching import Sampling


def job(**fields: object) -> Job:
    body = json.dumps({"model": "m", "prompt": "hi", **fields}).encode()
    return completion_job(read_body(body, CompletionBody), 300)


def test_defaults_are_those_of_the_api() -> None:
    made = job(seed=4)

    assert made == Job(
        model="m", prompt=[104, 105], max_tokens=16, sampling=Sampling(temperature=1.0, top_p=1.0, top_k=0, seed=4),
        stops=(), ignore_eos=False, is_stream=False, with_usage=False, is_chat=False,
    )  # fmt: skip


def test_every_field_is_taken() -> None:
    made = job(
        prompt=[1, 299], max_tokens=7, temperature=0, top_p=0.5, top_k=3, seed=-1, stop=["a", "b"], stream=True,
        stream_options={"include_usage": True}, ignore_eos=True, n=1, presence_penalty=0, user="x", unknown=[{}],
    )  # fmt: skip

    assert made == Job(
        model="m", prompt=[1, 299], max_tokens=7, sampling=Sampling(temperature=0, top_p=0.5, top_k=3, seed=-1),
        stops=("a", "b"), ignore_eos=True, is_stream=True, with_usage=True, is_chat=False,
    )  # fmt: skip


def test_a_text_becomes_its_bytes_also_as_the_only_one_of_a_list() -> None:
    assert job(prompt="é").prompt == [0xC3, 0xA9]
    assert job(prompt=["é"]).prompt == [0xC3, 0xA9]


def test_a_chat_becomes_lines_by_role() -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    made = chat_job(read_body(json.dumps({"model": "m", "messages": messages}).encode(), ChatBody))

    assert bytes(made.prompt) == b"system: be brief\nuser: ab\nassistant:"
    assert made.max_tokens is None and made.is_chat


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1 << 70}, "max_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 1 << 63}, "seed"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [300]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1 << 80]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [[1]]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"model": 5}, "model"),
        ({"model": ""}, "model"),
        ({"n": 2}, "n"),
        ({"echo": True}, "echo"),
        ({"logprobs": 3}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"logit_bias": {"5": 1.0}}, "logit_bias"),
        ({"presence_penalty": 1}, "presence_penalty"),
    ],
)
def test_what_is_wrong_or_not_supported_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        job(**fields)

    error = refused.value.body["error"]
    assert refused.value.status == 400
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"]


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b'"x"', b"{", b"\xff\xfe", b'{"model":"\xff","prompt":"x"}', b"[" * 100_000,
     b'{"model":"m","prompt":"x","z":' + b"[" * 100_000, b'{"model":"m","prompt":"\\ud800"}', b"{}",
     b'{"model":"m","prompt":"x","temperature":NaN}', b'{"model":"m","prompt":"x","temperature":1e999}',
     b'{"model":"m","prompt":"x","seed":1' + b"0" * 5000 + b"}", b"\x00" * 50],
)  # fmt: skip
def test_bodies_that_are_no_request_are_refused(data: bytes) -> None:
    for kind in (CompletionBody, ChatBody):
        with pytest.raises(ApiError) as refused:
            read_body(data, kind)
        assert refused.value.status == 400


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
_FIELDS = st.sampled_from([
    "model", "prompt", "messages", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "stream",
    "stream_options", "n", "logprobs", "logit_bias", "tools", "echo", "user",
])  # fmt: skip


@settings(deadline=None)
@given(st.dictionaries(_FIELDS, _JSON), st.booleans())
def test_any_body_is_a_job_or_refused(fields: dict[str, object], is_whole: bool) -> None:
    start = {"model": "m", "prompt": "p", "messages": [{"role": "user", "content": "c"}]} if is_whole else {}
    data = json.dumps({**start, **fields}).encode("utf-8", "surrogatepass")
    makes: list[Callable[[], Job]] = [
        lambda: completion_job(read_body(data, CompletionBody), 300), lambda: chat_job(read_body(data, ChatBody)),
    ]  # fmt: skip
    for make in makes:
        try:
            made = make()
        except ApiError as error:
            assert 400 <= error.status < 500
            json.dumps(error.body).encode()
        else:
            assert made.prompt and all(0 <= token < 300 for token in made.prompt)


@settings(deadline=None)
@given(st.binary())
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    try:
        read_body(data, CompletionBody)
    except ApiError as error:
        assert error.status == 400


# Text of an answer


@settings(deadline=None)
@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=3), max_size=4))
def test_pieces_together_are_the_text_before_the_first_stop(text: str, stops: list[str]) -> None:
    grown, shown, is_stopped = Text(stops), "", False
    encoded = text.encode()
    for byte in encoded:
        is_stopped = grown.add(byte)
        shown += grown.take()
        # What was shown is never taken back, and is never past a stop.
        assert text.startswith(shown)
        if is_stopped:
            break
    if not is_stopped:
        grown.finish()
        shown += grown.take()

    # The stop that is complete first ends the text; of those complete with one character, the one that began first.
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert (shown, is_stopped) == (text, False)
    else:
        seen = text[: min(ends)]
        assert is_stopped
        assert shown == seen[: min(seen.find(stop) for stop in stops if stop in seen)]


def test_half_characters_and_possible_stops_are_held_back() -> None:
    grown = Text(["END"])
    pieces = []
    for byte in "é1EN2END3".encode():
        grown.add(byte)
        pieces.append(grown.take())

    assert pieces == ["", "é", "1", "", "", "EN2", "", "", "", ""]
    assert grown.is_stopped


def test_damaged_bytes_and_special_tokens_do_not_end_the_text() -> None:
    grown = Text()
    for token in (0xFF, 65, 256, 0xC3):
        assert not grown.add(token)
    grown.finish()

    assert grown.take() == "\ufffdA\ufffd"
