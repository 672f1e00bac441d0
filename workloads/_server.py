"""An HTTP server with OpenAI's completions over a batcher: streamed or whole, cancelled when the client goes.

    POST /v1/completions   POST /v1/chat/completions   GET /v1/models   GET /health

The server has a thread of its own; the model runs in whatever thread runs the batcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ascend_perf.errors import MachineError
from ascend_perf.workloads import _answers, _batching
from ascend_perf.workloads._answers import ApiError, ChatBody, CompletionBody, Job, Text
from ascend_perf.workloads._text_data import ByteTokenizer

MAX_BODY_BYTES: Final = 8 << 20
"""A larger body is refused with 413."""
START_LIMIT_S: Final = 30.0
CLIENT_GONE: Final = 499
"""Status of an answer that nobody is there to read."""
GRACE_S: Final = 1.0
"""What clients have to read the last of their answers when the server gives up what is left."""


@dataclass(eq=False)
class _Answer:
    """A request on its way: the model's thread adds pieces of text, the server's thread takes them."""

    job: Job
    text: Text
    request: _batching.Request
    identity: str
    created: int = field(default_factory=lambda: int(time.time()))
    pieces: deque[str] = field(default_factory=deque)
    events: asyncio.Queue[_batching.Event] = field(default_factory=asyncio.Queue)
    is_ended: bool = False

    @property
    def usage(self) -> dict[str, int]:
        prompt, answer = len(self.request.prompt), len(self.request.output)
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


class Service:
    """What the endpoints need: the batcher, the model's name, and answers on their way.

    Give `deliver` to the batcher, then set `batcher`.
    """

    batcher: _batching.Batcher

    def __init__(self, model_name: str, vocabulary: int) -> None:
        self.model_name, self.vocabulary = model_name, vocabulary
        self.started = int(time.time())
        self._answers: dict[_batching.Request, _Answer] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def deliver(self, events: Sequence[_batching.Event]) -> None:
        """Called by the batcher's thread: pass the events on to the server's."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the server has ended
                self._loop.call_soon_threadsafe(self._dispatch, tuple(events))

    def _dispatch(self, events: Sequence[_batching.Event]) -> None:
        for event in events:
            if (answer := self._answers.get(event.request)) is not None:
                answer.events.put_nowait(event)

    def start(self, job: Job) -> _Answer:
        """Queue a job.

        Raises:
            ApiError: no such model, too many tokens, too many requests, or the server is about to end.
        """
        if job.model != self.model_name:
            raise ApiError(404, "the model does not exist; see /v1/models", param="model", code="model_not_found")
        self._loop = asyncio.get_running_loop()
        text, pieces = Text(job.stops), deque[str]()

        def should_stop(token: int) -> bool:
            is_end = (token == ByteTokenizer.end and not job.ignore_eos) or text.add(token)
            request = answer.request
            if is_end or len(request.output) >= request.max_tokens:
                text.finish()
            pieces.append(text.take())
            return is_end

        room = self.batcher.limits.max_context - len(job.prompt)
        request = _batching.Request(
            prompt=job.prompt, sampling=job.sampling, should_stop=should_stop,
            max_tokens=max(room, 1) if job.max_tokens is None else job.max_tokens,
        )  # fmt: skip
        prefix = "chatcmpl" if job.is_chat else "cmpl"
        answer = _Answer(job, text, request, f"{prefix}-{uuid.uuid4().hex}", pieces=pieces)
        self._answers[request] = answer
        try:
            self.batcher.submit(request)
        except BaseException as error:
            del self._answers[request]
            raise _refusal(error) from error
        return answer

    async def chunks(self, answer: _Answer) -> AsyncIterator[tuple[str, str | None]]:
        """Text of each token and, with the last, why it ended.

        Raises:
            ApiError: the model failed, or the server ended before the answer was complete.
        """
        while not answer.is_ended:
            event = await answer.events.get()
            answer.is_ended = event.reason is not None
            if event.token is None:
                if event.reason == "error":
                    raise ApiError(500, "the model failed", kind="server_error")
                raise ApiError(503, "the server ended before the answer was complete", kind="server_error")
            yield answer.pieces.popleft(), event.reason

    def leave(self, answer: _Answer) -> None:
        """The client has its answer, or has gone: then the batcher gives the request up."""
        del self._answers[answer.request]
        if not answer.is_ended:
            self.batcher.cancel(answer.request)


def _refusal(error: BaseException) -> BaseException:
    if isinstance(error, _batching.QueueFull):
        return ApiError(429, "too many requests wait; try again later", kind="rate_limit_error", code="queue_full")
    if isinstance(error, _batching.Draining):
        return ApiError(503, "the server is about to end", kind="server_error", code="draining")
    if isinstance(error, ValueError):
        return ApiError(400, str(error), param="max_tokens", code="context_length_exceeded")
    return error


def make_app(service: Service) -> FastAPI:
    """The endpoints."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        return _error_response(error)

    @app.exception_handler(HTTPException)
    async def no_such_thing(request: Request, error: HTTPException) -> Response:
        answer = _error_response(ApiError(error.status_code, str(error.detail)))
        answer.headers.update(error.headers or {})
        return answer

    @app.get("/health")
    async def health() -> Response:
        state = "draining" if service.batcher.is_draining else "ok"
        body = {"status": state, "running": service.batcher.running, "waiting": service.batcher.waiting}
        return JSONResponse(body, status_code=200 if state == "ok" else 503)

    @app.get("/v1/models")
    async def models() -> Response:
        model = {"id": service.model_name, "object": "model", "created": service.started, "owned_by": "ascend-perf",
                 "max_model_len": service.batcher.limits.max_context}  # fmt: skip
        return JSONResponse({"object": "list", "data": [model]})

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = _answers.read_body(await _body_of(request), CompletionBody)
        return await _answered(service, request, _answers.completion_job(body, service.vocabulary))

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = _answers.read_body(await _body_of(request), ChatBody)
        return await _answered(service, request, _answers.chat_job(body))

    return app


async def _body_of(request: Request) -> bytes:
    """The body, up to the limit.

    Raises:
        ApiError: it is too large, or said to be something else than JSON.
    """
    kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "the body must be application/json")
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > MAX_BODY_BYTES:
                raise ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
            parts.append(part)
    except ClientDisconnect as error:
        raise ApiError(CLIENT_GONE, "the client closed the connection") from error
    return b"".join(parts)


async def _answered(service: Service, request: Request, job: Job) -> Response:
    answer = service.start(job)
    if job.is_stream:
        return _Stream(service, answer)
    try:
        gone = asyncio.ensure_future(_disconnected(request.receive))
        whole = asyncio.ensure_future(_collected(service, answer))
        try:
            await asyncio.wait((gone, whole), return_when=asyncio.FIRST_COMPLETED)
            if not whole.done():
                return Response(status_code=CLIENT_GONE)
            text, reason = whole.result()
        finally:
            gone.cancel()
            whole.cancel()
    finally:
        service.leave(answer)
    choice: dict[str, object] = {"index": 0, "finish_reason": reason, "logprobs": None}
    choice |= {"message": {"role": "assistant", "content": text}} if job.is_chat else {"text": text}
    return JSONResponse({**_envelope(service, answer, is_chunk=False), "choices": [choice], "usage": answer.usage})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _collected(service: Service, answer: _Answer) -> tuple[str, str | None]:
    text, why = "", None
    async for piece, reason in service.chunks(answer):
        text, why = text + piece, reason
    return text, why


def _envelope(service: Service, answer: _Answer, *, is_chunk: bool) -> dict[str, object]:
    kind = "text_completion"
    if answer.job.is_chat:
        kind = "chat.completion.chunk" if is_chunk else "chat.completion"
    return {"id": answer.identity, "object": kind, "created": answer.created, "model": service.model_name}


class _Stream(Response):
    """Server-sent events: one per token, the last with the reason, then usage if asked for, then [DONE]."""

    def __init__(self, service: Service, answer: _Answer) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self.service, self.answer = service, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the answer is complete or the client has gone."""
        gone = asyncio.ensure_future(_disconnected(receive))
        sent = asyncio.ensure_future(self._send(send))
        try:
            await asyncio.wait((gone, sent), return_when=asyncio.FIRST_COMPLETED)
            if sent.done():
                sent.result()
        finally:
            gone.cancel()
            sent.cancel()
            self.service.leave(self.answer)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for text in self._events():
            data = f"data: {text}\n\n".encode()
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[str]:
        service, answer, job = self.service, self.answer, self.answer.job
        envelope = _envelope(service, answer, is_chunk=True)
        usage: dict[str, object] = {"usage": None} if job.with_usage else {}

        def chunk(choice: dict[str, object]) -> str:
            return json.dumps({**envelope, "choices": [{"index": 0, "logprobs": None, **choice}], **usage})

        if job.is_chat:
            yield chunk({"delta": {"role": "assistant", "content": ""}, "finish_reason": None})
        try:
            async for piece, reason in service.chunks(answer):
                content: dict[str, object] = {"delta": {"content": piece}} if job.is_chat else {"text": piece}
                yield chunk({**content, "finish_reason": reason})
        except ApiError as error:
            yield json.dumps(error.body)
            return
        if job.with_usage:
            yield json.dumps({**envelope, "choices": [], "usage": answer.usage})
        yield "[DONE]"


def _error_response(error: ApiError) -> JSONResponse:
    headers = {"retry-after": "1"} if error.status in (429, 503) else None
    return JSONResponse(error.body, status_code=error.status, headers=headers)


class HttpServer:
    """The service on a socket, in a thread of its own.

    Raises:
        MachineError: the address is taken or not this machine's.
    """

    def __init__(self, service: Service, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._service = service
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
        except (OSError, OverflowError) as error:
            self._socket.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise MachineError(f"cannot listen at {host} port {port}: {reason}", hint="choose another port") from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"
        # Loop and parser are named, so that results do not depend on what else is installed.
        config = uvicorn.Config(
            make_app(service), loop="asyncio", http="h11", ws="none", lifespan="off", log_level="warning",
            access_log=False, server_header=False, timeout_keep_alive=75,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="http-server", daemon=True)

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    def start(self) -> None:
        """Listen; returns when connections are accepted.

        Raises:
            MachineError: the server does not start.
        """
        self._thread.start()
        deadline = time.monotonic() + START_LIMIT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise MachineError("the HTTP server does not start")
            time.sleep(0.005)

    def shut_down(self, limit_s: float) -> int:
        """Accept nothing more, answer what is here, then end. Call from the thread that runs the batcher.

        Returns:
            Requests that had no answer within the limit and were given up.
        """
        batcher = self._service.batcher
        batcher.drain()
        self._server.should_exit = True
        deadline = time.monotonic() + limit_s
        try:
            batcher.run(lambda: not self._thread.is_alive() or time.monotonic() > deadline)
        finally:  # the model may have failed: clients are told all the same
            left = batcher.running + batcher.waiting
            batcher.end()
            self._thread.join(GRACE_S)
            self._server.force_exit = True
            self._thread.join(START_LIMIT_S)
            self._socket.close()
        return left
