"""What a server says of an error, and why one cannot be reached: short, and without its address."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Final

MAX_SAID: Final = 200
"""Letters of a server's message that are shown."""


def said_in(body: bytes) -> str:
    """The message of an error, as servers write it: OpenAI's body, FastAPI's, or plain text; one line without control
    characters."""
    try:
        answer = json.loads(body)
        error = answer.get("error") if isinstance(answer, dict) else None
        message = error.get("message") if isinstance(error, dict) else error
        if message is None and isinstance(answer, dict):
            message = answer.get("message") or answer.get("detail")
        text = message if isinstance(message, str) else json.dumps(answer)
    except (ValueError, RecursionError):
        text = body[: 4 * MAX_SAID].decode("utf-8", "replace")
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[: 4 * MAX_SAID]).split())
    return line if len(line) <= MAX_SAID else line[:MAX_SAID] + "..."


def reason_of(error: Exception) -> str:
    """Why a server cannot be reached, without its address."""
    import aiohttp

    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientSSLError):
        return "its certificate or TLS is not accepted (http in place of https, or --insecure)"
    if isinstance(error, aiohttp.ClientConnectorError):
        return os.strerror(error.errno) if error.errno and error.errno > 0 else "no such host"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it closes the connection"
    if isinstance(error, aiohttp.ClientResponseError):
        return "what answers there does not speak HTTP"
    return type(error).__name__
