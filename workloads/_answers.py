"""From a request's body to a job for the batcher, and from its tokens to text: the part of the server without HTTP.

A body is checked field by field; what is wrong or not supported raises `ApiError`, which says it as OpenAI's API does.

Source:
    OpenAI API reference, completions and chat; `top_k` and `ignore_eos` as vLLM and MindIE have them.
"""

from __future__ import annotations

import codecs
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from ascend_perf.workloads._batching import Sampling
from ascend_perf.workloads._text_data import ByteTokenizer

_B = TypeVar("_B")

MAX_STOPS: Final = 4
DEFAULT_TOKENS: Final = 16
"""Length of a completion that asks for none, as in OpenAI's API."""

_Name = Annotated[str, Meta(min_length=1, max_length=256)]
_Stop = Annotated[str, Meta(min_length=1, max_length=256)]
_Count = Annotated[int, Meta(ge=1, le=1 << 30)]


class ApiError(Exception):
    """A request that is refused: HTTP status and the fields of the error object."""

    def __init__(self, status: int, message: str, *, kind: str = "invalid_request_error", param: str | None = None,
                 code: str | None = None) -> None:  # fmt: skip
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class StreamOptions(msgspec.Struct):
    """Of a stream."""

    include_usage: bool = False


class _Body(msgspec.Struct, kw_only=True):
    """What both endpoints take. Unknown fields are ignored."""

    model: _Name
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 30)] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)] | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None


class CompletionBody(_Body, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[str | int]
    max_tokens: _Count | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


class _Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part]


class ChatBody(_Body, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[_Message], Meta(min_length=1)]
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    logprobs: bool | None = None
    tools: list[msgspec.Raw] | None = None


@dataclass(frozen=True, kw_only=True)
class Job:
    """A request's body, checked."""

    model: str
    prompt: Sequence[int]
    max_tokens: int | None
    """None: as many as the context has room for."""
    sampling: Sampling
    stops: tuple[str, ...]
    ignore_eos: bool
    is_stream: bool
    with_usage: bool
    is_chat: bool


def read_body(data: bytes, kind: type[_B]) -> _B:
    """The body as `kind`.

    Raises:
        ApiError: it is no JSON, or a field is missing, of the wrong type or out of range.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        where = path.strip("`").lstrip(".")
        said = f"{text}, in {where}" if where else text
        raise ApiError(400, said, param=where.partition("[")[0] or None) from error
    except msgspec.DecodeError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise ApiError(400, "the body is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ApiError(400, "the body is not valid UTF-8") from error


def completion_job(body: CompletionBody, vocabulary: int) -> Job:
    """What a completion asks for.

    Raises:
        ApiError: it asks for what this server does not do.
    """
    _refuse_unsupported(body, {"best_of": body.best_of not in (None, 1), "echo": bool(body.echo),
                               "suffix": body.suffix is not None, "logprobs": body.logprobs is not None})  # fmt: skip
    return _job(body, _prompt_tokens(body.prompt, vocabulary), body.max_tokens or DEFAULT_TOKENS, is_chat=False)


def chat_job(body: ChatBody) -> Job:
    """What a chat asks for: its messages as lines `role: content`, then `assistant:`."""
    _refuse_unsupported(body, {"logprobs": bool(body.logprobs), "tools": bool(body.tools)})
    lines = []
    for number, message in enumerate(body.messages):
        text = message.content
        if not isinstance(text, str):
            if any(part.type != "text" or part.text is None for part in text):
                raise ApiError(400, "only parts of type text are supported", param=f"messages[{number}].content")
            text = "".join(part.text or "" for part in text)
        lines.append(f"{message.role}: {text}\n")
    prompt = ByteTokenizer().encode("".join([*lines, "assistant:"])).tolist()
    return _job(body, prompt, body.max_completion_tokens or body.max_tokens, is_chat=True)


def _refuse_unsupported(body: _Body, more: dict[str, bool]) -> None:
    asked = {
        "n": body.n not in (None, 1), "presence_penalty": bool(body.presence_penalty),
        "frequency_penalty": bool(body.frequency_penalty), "logit_bias": bool(body.logit_bias), **more,
    }  # fmt: skip
    for name, is_asked in asked.items():
        if is_asked:
            raise ApiError(400, f"{name} is not supported by this server", param=name, code="unsupported_parameter")


def _job(body: _Body, prompt: Sequence[int], max_tokens: int | None, *, is_chat: bool) -> Job:
    stops = () if body.stop is None else (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options is for streams only", param="stream_options")
    return Job(
        model=body.model, prompt=prompt, max_tokens=max_tokens, stops=stops, ignore_eos=body.ignore_eos,
        sampling=Sampling(
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            top_k=max(body.top_k or 0, 0),
            seed=random.getrandbits(63) if body.seed is None else body.seed,
        ),
        is_stream=bool(body.stream), is_chat=is_chat,
        with_usage=body.stream_options is not None and body.stream_options.include_usage,
    )  # fmt: skip


def _prompt_tokens(prompt: str | list[str | int], vocabulary: int) -> Sequence[int]:
    """Bytes of a text, or the numbers of tokens as they are."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if isinstance(prompt, str):
        tokens: list[int] = ByteTokenizer().encode(prompt).tolist()
    else:
        tokens = []
        for token in prompt:
            if not isinstance(token, int):
                raise ApiError(400, "one prompt per request: a text, or a list of tokens", param="prompt")
            if not 0 <= token < vocabulary:
                raise ApiError(400, f"a prompt's tokens are 0 to {vocabulary - 1}", param="prompt")
            tokens.append(token)
    if not tokens:
        raise ApiError(400, "the prompt is empty", param="prompt")
    return tokens


class Text:
    """Text of an answer as it grows, cut before the first stop string.

    Characters whose bytes are not complete, and an end that may become a stop string, are held back.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = stops
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._ready = ""
        self.is_stopped = False

    def add(self, token: int) -> bool:
        """Add a token; True when a stop string is complete: what comes after it is not part of the text."""
        if token < 256:
            self._grow(self._decoder.decode(bytes((token,))))
        return self.is_stopped

    def finish(self) -> None:
        """There are no more tokens: nothing is held back any more."""
        self._grow(self._decoder.decode(b"", final=True))
        self._ready, self._held = self._ready + self._held, ""

    def take(self) -> str:
        """Text that may be shown and was not taken before."""
        ready, self._ready = self._ready, ""
        return ready

    def _grow(self, more: str) -> None:
        if self.is_stopped:
            return
        text = self._held + more
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.is_stopped = True
            self._ready, self._held = self._ready + text[: min(found)], ""
            return
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._ready, self._held = self._ready + text[: len(text) - keep], text[len(text) - keep :]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
