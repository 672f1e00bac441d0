"""Chrome trace events from JSON of any size: decoded in chunks into typed structs, never as one object tree.

The file is read in blocks. Inside a JSON string a bare `"` cannot occur, so the bytes `}`, `,`, `{`, `"key"` mark the
border between two events (or between two objects of a list inside `args`: then the chunk does not decode, and the cut
moves on to the next border). Each chunk between two cuts is decoded by msgspec; `args` stay raw bytes until asked for.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ascend_perf import files
from ascend_perf.errors import InputError

MAX_EVENT_BYTES: Final = 512 << 20
"""A stretch of file this long without a border between events is refused. Status: assumed."""

MAX_PARTS: Final = 16
"""An event whose args hold more borders than this is lost where its stretch is damaged. Status: assumed."""
SALVAGE_BYTES: Final = 32 << 20
"""A stretch of file this long that does not decode is damaged inside: its whole events are picked out one by one.
Status: assumed."""

_BLANK: Final = b"\xef\xbb\xbf \t\r\n"
"""White space and the byte-order mark."""
_POSITION: Final = re.compile(r"\(byte (\d+)\)")
_TRAILING: Final = "trailing characters"
"""Words of msgspec's messages."""
_BORDER: Final = re.compile(rb'\}\s*,\s*\{\s*"')
_GLUED: Final = re.compile(rb"\]\s*,?\s*\[")
_ARRAY_KEY: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_NEXT: Final = re.compile(_ARRAY_KEY.pattern + rb'|\}\s*\]\s*,?\s*\[(?=\s*\{\s*")')
"""Where the events of another trace begin: those of an object, or an array right behind another one."""
_STRING_OR_BRACKET: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_NO_NUMBER: Final = re.compile(rb"(?<=[:,\[\s])-?(?:NaN|nan|Infinity|inf)(?=[\s,}\]])")
_STRING_OR_NO_NUMBER: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?\b(?:NaN|nan|Infinity|inf)\b', re.DOTALL)
"""NaN and Infinity, which Python writes and JSON does not know; strings are matched to be left alone."""


class Event(msgspec.Struct, gc=False):
    """One trace event. `ts`, `dur`, `pid`, `tid`, `id` keep their JSON text: see `decimal_ns` and `json_ints`."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    pid: msgspec.Raw = msgspec.Raw(b"")
    tid: msgspec.Raw = msgspec.Raw(b"")
    id: msgspec.Raw = msgspec.Raw(b"")
    args: msgspec.Raw = msgspec.Raw(b"")


class _LooseEvent(msgspec.Struct, gc=False):
    """As `Event`, for files in which a name or category is null or a number."""

    ph: object = ""
    name: object = ""
    cat: object = ""
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    pid: msgspec.Raw = msgspec.Raw(b"")
    tid: msgspec.Raw = msgspec.Raw(b"")
    id: msgspec.Raw = msgspec.Raw(b"")
    args: msgspec.Raw = msgspec.Raw(b"")


_DECODER: Final = msgspec.json.Decoder(list[Event])
_LOOSE: Final = msgspec.json.Decoder(list[_LooseEvent])
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ONE: Final = msgspec.json.Decoder(_LooseEvent)


@dataclass
class EventFile:
    """A trace file while and after it is read: what lies around the events and what was wrong.

    `head` is the JSON before the events and `tail` the JSON after them (object form only); `facts` reads both.
    """

    path: Path
    block_bytes: int = files.BLOCK_BYTES
    size_bytes: int = 0
    events: int = 0
    head: bytes = b""
    tail: bytes = b""
    problems: list[str] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)

    def drop(self, reason: str, count: int) -> None:
        """Count events that were not used."""
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def facts(self) -> dict[str, msgspec.Raw]:
        """Top-level members of the object form beside `traceEvents`, undecoded; empty for a bare array."""
        head = self.head.lstrip(_BLANK)
        text = head + b"[]" + self.tail
        for candidate in (text, text[: _end_of_object(text)], text.rstrip().rstrip(b",") + b"}", head + b"[]}"):
            try:
                members = msgspec.json.decode(without_nan(candidate), type=dict[str, msgspec.Raw])
            except (msgspec.DecodeError, RecursionError):
                continue
            members.pop("traceEvents", None)
            return members
        return {}

    def read(self) -> Iterator[list[Event]]:
        """Events in chunks, in file order.

        Raises:
            InputError: the file cannot be read, or holds no trace events.
        """
        stream = _Stream(self)
        yield from stream.chunks()
        if self.events == 0 and not stream.saw_array:
            raise InputError(
                f"{self.path} holds no trace events: expected a JSON array of events or an object with traceEvents",
                hint="give a trace_view.json, a *.pt.trace.json[.gz], or the profile's directory",
            )


class _Stream:
    """Cuts the blocks of a file into decodable chunks of whole events."""

    def __init__(self, file: EventFile) -> None:
        self.file = file
        self.saw_array = False
        self._glued = False
        """Whether another trace came behind the first one."""
        self._failure: str | None = None
        """What was wrong when the last stretch did not decode, with its place; None when it only was cut."""

    def chunks(self) -> Iterator[list[Event]]:
        buffer = b""
        in_array = False
        source = files.blocks(self.file.path, self.file.block_bytes)
        done = False
        while not done:
            try:
                block = next(source, b"")
            except InputError as error:
                # Damaged or cut compressed data: what came before is kept, and the message goes to the reader.
                self.file.problems.append(error.what.replace(str(self.file.path), "the file"))
                block = b""
            done = not block
            self.file.size_bytes += len(block)
            buffer += block
            if not in_array:
                start = self._array_start(buffer)
                if start is None:
                    if len(buffer) > MAX_EVENT_BYTES:
                        raise InputError(f"{self.file.path} has no trace events in its first {len(buffer) >> 20} MiB")
                    continue
                if buffer.lstrip(_BLANK)[:1] == b"[":
                    self.file.head = b""
                else:
                    self.file.head = buffer[: start - 1]
                buffer = buffer[start:]
                in_array = self.saw_array = True
            if done:
                break
            events, buffer = self._take(buffer)
            if events:
                yield events
            if not events and _TRAILING in (self._failure or ""):
                buffer = yield from self._ended(buffer)
            if not events and len(buffer) > max(SALVAGE_BYTES, 2 * self.file.block_bytes):
                events, buffer = self._salvage_start(buffer)
                yield events
            if len(buffer) > MAX_EVENT_BYTES:
                raise InputError(
                    f"{self.file.path}: {len(buffer) >> 20} MiB without the end of an event",
                    hint="the file is damaged, or is not a trace",
                )
        if in_array:
            buffer = yield from self._ended(buffer.strip())
            yield from filter(None, self._rest(buffer))

    def _array_start(self, buffer: bytes) -> int | None:
        """Position after the `[` that opens the events, None when it has not come yet."""
        text = buffer.lstrip(_BLANK)
        if not text:
            return None
        if text[:1] == b"[":
            return len(buffer) - len(text) + 1
        match = _ARRAY_KEY.search(buffer)
        return match.end() if match else None

    def _take(self, buffer: bytes) -> tuple[list[Event], bytes]:
        """Events up to the last usable border of the buffer, and what remains."""
        end = len(buffer)
        failure = self._failure = None
        for _ in range(64):
            cut = self._last_border(buffer, end)
            if cut is None:
                return [], buffer
            events = self._decode(buffer[: cut + 1])
            if events is None and end == len(buffer):
                events = self._split_glued(buffer[: cut + 1])
            if events is None and failure is not None and self._failure == failure:
                # Wherever the stretch is cut, the same place is wrong: no border inside of an event.
                if _TRAILING in failure:
                    break  # the events end in here: what follows is looked at when all is there
                events = self._salvage(buffer[: cut + 1], "inside")
            if events is not None:
                return events, buffer[buffer.index(b"{", cut) :]
            failure = self._failure
            end = cut
        return [], buffer

    @staticmethod
    def _last_border(buffer: bytes, end: int) -> int | None:
        """Position of the `}` of the last border before `end`."""
        window = 1 << 16
        while True:
            start = max(0, end - window)
            last = None
            for match in _BORDER.finditer(buffer, start, end):
                last = match.start()
            if last is not None:
                return last
            if start == 0:
                return None
            window *= 8

    def _decode(self, text: bytes) -> list[Event] | None:
        body = text.strip().lstrip(b",")
        events: list[Event] | None
        try:
            events = _DECODER.decode(b"[" + body + b"]")
        except msgspec.ValidationError as error:
            self._failure = str(error)
            events = self._decode_loose(b"[" + body + b"]")
        except (msgspec.DecodeError, RecursionError) as error:
            place = _POSITION.search(str(error))
            self._failure = str(error) if place else None
            if place:
                # Only the place counts: to look through all of a long stretch each time would take the square of it.
                at = int(place[1])
                if not _NO_NUMBER.search(body, max(0, at - 8), at + 16) or (plain := without_nan(body)) == body:
                    return None
                if (readable := self._decode(plain)) is not None:
                    self._note("values that are no numbers (written by a division by zero) were read as unknown")
                return readable
            try:
                repaired = body.decode("utf-8", "strict")
            except UnicodeDecodeError:
                # Invalid UTF-8 (cut names of C++ symbols): replace the bytes and go on.
                repaired = body.decode("utf-8", "replace")
                try:
                    events = _DECODER.decode(b"[" + repaired.encode() + b"]")
                except (msgspec.DecodeError, RecursionError):
                    return None
                self._note("invalid UTF-8 was replaced")
            else:
                return None
        self.file.events += 0 if events is None else len(events)
        return events

    def _decode_loose(self, text: bytes) -> list[Event] | None:
        loose: list[_LooseEvent] | None
        try:
            loose = _LOOSE.decode(text)
        except msgspec.ValidationError:
            loose = self._objects_only(text)
        except (msgspec.DecodeError, RecursionError):
            return None
        if loose is None:
            return None
        return [Event(_word(e.ph), _word(e.name), _word(e.cat), e.ts, e.dur, e.pid, e.tid, e.id, e.args) for e in loose]

    def _objects_only(self, text: bytes) -> list[_LooseEvent] | None:
        """The events of an array in which null, text or numbers stand between them, None when more is wrong."""
        try:
            items = [bytes(item) for item in _ITEMS.decode(text)]
            objects = [item for item in items if item.lstrip(_BLANK)[:1] == b"{"]
            loose = _LOOSE.decode(b"[" + b",".join(objects) + b"]")
        except (msgspec.DecodeError, RecursionError):
            return None
        if lost := len(items) - len(objects):
            self._damaged("inside", lost)
        return loose

    def _damaged(self, where: str, lost: int) -> None:
        self.file.drop("event cut or damaged", lost)
        self._note(f"the file is damaged {where}: {lost} event(s) could not be read, the others were")

    def _note(self, text: str) -> None:
        if text not in self.file.problems:
            self.file.problems.append(text)

    def _split_glued(self, text: bytes) -> list[Event] | None:
        """Events of several arrays glued together (`...][...`), None when that is not what is wrong."""
        if not _GLUED.search(text):
            return None
        events: list[Event] = []
        for part in _GLUED.split(text):
            decoded = self._decode(part)
            if decoded is None:
                return None
            events += decoded
        self._note("several arrays were glued together; all were read")
        return events

    def _ended(self, buffer: bytes) -> Generator[list[Event], None, bytes]:
        """The events of traces that another one follows; returns the events of the last one, as far as they are there.

        Each trace is cut out before it is looked at, so that thousands of them take no longer than one as long.
        """
        at = 0
        for following in _NEXT.finditer(buffer):
            if following[0][:1] == b'"':
                yield from filter(None, self._rest(buffer[at : following.start()], is_last=False))
                self._note("several traces were glued together; the events of all were read")
            else:
                events = self._decode(buffer[at : following.start() + 1])
                if events is None:
                    continue  # a list of lists in the args of an event
                yield events
                self._note("several arrays were glued together; all were read")
            self._glued = True
            at = following.end()
        return buffer[at:]

    def _rest(self, buffer: bytes, *, is_last: bool = True) -> Iterator[list[Event]]:
        """The last events: up to the closing `]`, or what can be saved of a damaged end; and those of further arrays.

        Args:
            buffer: what remains of the text of a trace.
            is_last: whether no other trace follows; else the text ends with the head of the next one.
        """
        left: bytes | None = buffer
        while left is not None:
            events, text = self._take(left.strip())
            yield events
            events, left = self._last(text, is_last=is_last)
            yield events

    def _last(self, text: bytes, *, is_last: bool) -> tuple[list[Event], bytes | None]:
        """The events that do not end with a border, and the text of another array behind theirs.

        The usual end: events, `]`, then (object form) more members and `}`. The closing bracket is the first `]` that
        leaves a decodable list before it; brackets inside args come earlier and do not.
        """
        for closing in self._closings(text):
            last = self._decode(text[:closing].rstrip().rstrip(b","))
            if last is not None:
                following = text[closing + 1 :].lstrip().lstrip(b",").lstrip()
                if following[:1] == b"[":
                    self._note("several arrays were glued together; all were read")
                    return last, following[1:]
                self._after_object(text[closing + 1 :], is_last=is_last)
                return last, None
        last = self._decode(text.rstrip().rstrip(b","))
        if last is not None:
            if text:
                self._note("the closing bracket is missing: recording or export was interrupted; all events were read")
            return last, None
        if (glued := self._split_glued(text.rstrip().rstrip(b"]"))) is not None:
            return glued, None
        return self._salvage(text), None

    def _after_object(self, text: bytes, *, is_last: bool) -> None:
        """What is behind the events: more members of their object; anything else is reported."""
        if not self.file.head:
            beyond = text.strip(_BLANK + b"\0")
        else:
            end = _end_of_object(b'{"":0' + text) - len(b'{"":0')
            beyond = text[end:].strip(_BLANK + b"\0")
            if not self._glued:  # the facts are those of the first trace
                self.file.tail = text[:end] if end > 0 else text
        if beyond and (is_last or beyond[:1] not in b",{"):
            self._note(f"{len(beyond)} bytes of something else follow the end of the trace")

    @staticmethod
    def _closings(text: bytes) -> Iterator[int]:
        """Positions of `]` that could close the events: after `}` or `null`, and before `}`, `,`, `[` or the end."""
        pattern = re.compile(rb"\}\s*,?\s*(?:null\s*,?\s*)*\]|^\s*\]")
        other: deque[int] = deque(maxlen=64)
        for tried, match in enumerate(pattern.finditer(text)):
            if tried > 4096:
                return
            position = match.end() - 1
            after = text[position + 1 :].lstrip()[:1]
            if after in (b"", b"}", b",", b"["):
                yield position
            else:
                other.append(position)
        yield from other  # something else follows the end

    def _salvage_start(self, buffer: bytes) -> tuple[list[Event], bytes]:
        """Whole events of a stretch that does not decode; what follows its last border remains."""
        cut = self._last_border(buffer, len(buffer))
        if cut is None:
            return [], buffer
        return self._salvage(buffer[: cut + 1], "inside"), buffer[buffer.index(b"{", cut) :]

    def _salvage(self, text: bytes, where: str = "near its end") -> list[Event]:
        """Whole events of a damaged stretch: halves that do not decode are halved until one event is lost."""
        pieces = _split_at_borders(text)
        found: dict[int, list[Event]] = {}
        bad: list[int] = []
        todo = [(0, len(pieces))]
        while todo:
            first, last = todo.pop()
            part = self._decode(b",".join(pieces[first:last]))
            if part is not None:
                found[first] = part
            elif last - first == 1:
                bad.append(first)
            else:
                middle = (first + last) // 2
                todo += [(middle, last), (first, middle)]
        lost = 0
        while bad:
            used = self._join(pieces, bad, found)
            lost += not used
            bad = bad[used or 1 :]
        events = [event for first in sorted(found) for event in found[first]]
        self._damaged(where, lost)
        return events

    def _join(self, pieces: Sequence[bytes], bad: Sequence[int], found: dict[int, list[Event]]) -> int:
        """Neighbouring pieces that only decode together are one event with borders inside of its args.

        Returns:
            How many pieces the event at the start of `bad` took, 0 when there is none.
        """
        first = bad[0]
        for count in range(2, min(MAX_PARTS, len(bad)) + 1):
            if bad[count - 1] != first + count - 1:
                return 0
            part = self._decode(b",".join(pieces[first : first + count]))
            if part is not None:
                found[first] = part
                return count
        return 0


def _split_at_borders(text: bytes) -> list[bytes]:
    cuts = [match.start() + 1 for match in _BORDER.finditer(text)]
    edges = [0, *cuts, len(text)]
    return [text[a:b].strip().lstrip(b",").strip() for a, b in pairwise(edges)]


def without_nan(text: bytes) -> bytes:
    """JSON text with the bare words NaN and Infinity replaced by null; strings stay as they are."""
    if not _NO_NUMBER.search(text):
        return text
    return _STRING_OR_NO_NUMBER.sub(lambda match: match[0] if match[0][:1] == b'"' else b"null", text)


def _end_of_object(text: bytes) -> int:
    """Position behind the `}` that closes the object at the start of the text; its length when none does."""
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        sign = match[0]
        if sign in (b"{", b"["):
            depth += 1
        elif sign in (b"}", b"]"):
            depth -= 1
            if depth <= 0:
                return match.end()
    return len(text)


def _word(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


class Interner:
    """Gives each distinct text a code, over all chunks of a file."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def codes(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """A code per text, shape (n,), int32."""
        index = self._index
        # In the order of the file: a set's order differs between processes, and ties of a report would with it.
        for text in dict.fromkeys(texts):
            if text not in index:
                index[text] = len(index)
        return np.fromiter(map(index.__getitem__, texts), np.int32, len(texts))

    @property
    def values(self) -> list[str]:
        """The texts in the order of their codes."""
        return list(self._index)
