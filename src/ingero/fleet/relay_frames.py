"""Questions to relays and their answers: for each node pieces of its answer, then how it ended.

Each frame is a line of JSON, followed by as many bytes as it says. Readers do not trust the other side.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from ingero.errors import IngeroError
from ingero.fleet.client import PIECE_BYTES, Question
from ingero.fleet.clocks import Clock, Step
from ingero.fleet.node_lists import Node, NodeListError, checked_node

RELAY_PATH = "/api/v2/relay"
MEDIA_TYPE = "application/vnd.ingero.relay"
MAX_NODES = 2_000  # of a question: a quarter of the 256 KiB that a node's server takes as a body
MAX_LEVELS = 2  # of relays between who asks and a node: with 64 each, more nodes than a list may have
AT_ONCE = 64  # as ClusterShell; each takes a connection, a handshake and a thread for its name
LONGEST_S = 3600.0  # for one node, where a timeout of 0 asks for no end
_MAX_LINE_BYTES = 16 << 10
_MAX_PATH = 4 << 10
_MAX_STATEMENT = 192 << 10  # its text has 64 KiB at most
_STATEMENTS = "/api/v2/query"  # what is asked by POST, and nothing else is
_MAX_SENTENCE = 2048
_BROKEN = "try again; if it stays, `ingero version` on both hosts"

_Moment = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Offset = Annotated[int, msgspec.Meta(ge=-(2**63) + 1, le=2**63 - 1)]
_Sentence = Annotated[str, msgspec.Meta(max_length=_MAX_SENTENCE)]
_Host = Annotated[str, msgspec.Meta(max_length=253)]
_Place = Annotated[int, msgspec.Meta(ge=0, lt=MAX_NODES)]
_Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
_PATH = r"^/api/v[12](/[A-Za-z0-9][A-Za-z0-9_.-]{0,80}){1,4}(\?[!-~]*)?\Z"
_View = Annotated[str, msgspec.Meta(max_length=_MAX_PATH, pattern=_PATH)]


class FrameError(IngeroError):
    """The bytes are no answer of a relay."""


class _Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    path: _View
    media_type: _Host
    body: Annotated[str, msgspec.Meta(max_length=_MAX_STATEMENT)] = ""


class RelayQuestion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A question to a relay. nodes: each with the index of its question.

    via: further relays, a level each: a relay takes the first off, so that no question goes in circles. timeout_s: for
    each node, from when it is its turn.
    """

    questions: Annotated[list[_Asked], msgspec.Meta(min_length=1, max_length=MAX_NODES)]
    nodes: Annotated[list[tuple[_Host, _Port, _Host, _Place]], msgspec.Meta(min_length=1, max_length=MAX_NODES)]
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_S)]
    at_once: Annotated[int, msgspec.Meta(ge=1, le=AT_ONCE)] = AT_ONCE
    via: Annotated[
        list[Annotated[list[tuple[_Host, _Port, _Host]], msgspec.Meta(min_length=1, max_length=MAX_NODES)]],
        msgspec.Meta(max_length=MAX_LEVELS - 1),
    ] = []

    def asked(self) -> list[tuple[Node, Question]]:
        """The nodes with their questions.

        Raises:
            FrameError: something in it is no node, or has no question.
        """
        questions = [
            Question(question.path, question.media_type, question.body.encode()) for question in self.questions
        ]
        return [(_node(host, port, address), _at(questions, place)) for host, port, address, place in self.nodes]

    def further(self) -> tuple[tuple[Node, ...], ...]:
        """The relays to ask the nodes through, by level.

        Raises:
            FrameError: something in it is no node.
        """
        return tuple(tuple(_node(*one) for one in level) for level in self.via)


class _Step(msgspec.Struct, frozen=True):
    at_ns: _Offset
    by_ns: _Offset
    bound_ns: _Moment


class _Clock(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    offset_ns: _Offset
    bound_ns: _Moment
    at_ns: _Offset
    exchanges: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    steps: Annotated[list[_Step], msgspec.Meta(max_length=16)] = []


class Whole(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """End of a complete answer of a node."""

    certificate_until: Annotated[str, msgspec.Meta(max_length=64)] = ""
    clock: _Clock | None = None

    def by_relay(self) -> Clock | None:
        """The node's clock, relative to the relay's."""
        if self.clock is None:
            return None
        steps = tuple(Step(at_ns=step.at_ns, by_ns=step.by_ns, bound_ns=step.bound_ns) for step in self.clock.steps)
        return Clock(
            offset_ns=self.clock.offset_ns, bound_ns=self.clock.bound_ns, at_ns=self.clock.at_ns,
            exchanges=self.clock.exchanges, steps=steps,
        )  # fmt: skip


class Failed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """End of a failed answer; its pieces are void. is_said: the node itself gave the reason."""

    reason: _Sentence
    hint: _Sentence = ""
    is_said: bool = False


class Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line. node: its index in the question. size: of the piece that follows, in bytes. Others end the answer."""

    node: _Place
    size: Annotated[int, msgspec.Meta(ge=0, le=PIECE_BYTES)] = 0
    whole: Whole | None = None
    failed: Failed | None = None


_encode = msgspec.json.Encoder().encode
_frame_of = msgspec.json.Decoder(Frame).decode
_question_of = msgspec.json.Decoder(RelayQuestion).decode


def question_of(body: bytes) -> RelayQuestion:
    """Parse a client's question.

    Raises:
        FrameError: it is no such question, or not one that may be passed on.
    """
    try:
        found = _question_of(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError("it is no question to be passed on", hint="docs/fleet.md says what is") from error
    if any(bool(question.body) != (question.path == _STATEMENTS) for question in found.questions):
        raise FrameError(f"{_STATEMENTS} needs a body, and nothing else has one", hint="docs/fleet.md says what is")
    return found


def question_for(
    asked: Sequence[tuple[Node, Question]], via: Sequence[Sequence[Node]], *, timeout_s: float, at_once: int
) -> bytes:
    """The body of a question to a relay; a question for many nodes is in it once."""
    places: dict[Question, int] = {}
    nodes = [(node.host, node.port, node.address, places.setdefault(question, len(places))) for node, question in asked]
    return _encode(
        RelayQuestion(
            questions=[
                _Asked(path=place.path, media_type=place.media_type, body=place.body.decode()) for place in places
            ],
            nodes=nodes,
            timeout_s=min(timeout_s, LONGEST_S),
            at_once=min(at_once, AT_ONCE),
            via=[[(one.host, one.port, one.address) for one in level] for level in via],
        )
    )


def pieces_of(node: int, answer: bytes) -> Iterator[bytes]:
    """Frames for a part of a node's answer."""
    for at in range(0, len(answer), PIECE_BYTES):
        piece = answer[at : at + PIECE_BYTES]
        yield b'{"node":%d,"size":%d}\n%b' % (node, len(piece), piece)


def end_of(node: int, ending: Whole | Failed) -> bytes:
    """The frame for the end of a node's answer."""
    frame = Frame(node=node, whole=ending) if isinstance(ending, Whole) else Frame(node=node, failed=ending)
    return _encode(frame) + b"\n"


def whole(certificate_until: str, clock: Clock | None) -> Whole:
    """The end of a complete answer. clock: the node's, relative to the sender's."""
    if clock is None:
        return Whole(certificate_until=certificate_until)
    steps = [_Step(step.at_ns, step.by_ns, step.bound_ns) for step in clock.steps]
    node_clock = _Clock(
        offset_ns=clock.offset_ns, bound_ns=clock.bound_ns, at_ns=clock.at_ns, exchanges=clock.exchanges, steps=steps
    )
    return Whole(certificate_until=certificate_until, clock=node_clock)


def failed(reason: str, hint: str, *, is_said: bool) -> Failed:
    """The end of a failed answer."""
    return Failed(reason=reason[:_MAX_SENTENCE], hint=hint[:_MAX_SENTENCE], is_said=is_said)


class FrameReader:
    """Parses an answer as it arrives."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._frame: Frame | None = None  # a frame that waits for its piece

    def feed(self, data: bytes) -> Iterator[tuple[Frame, bytes]]:
        """Feed bytes; the frames that are complete by now, with their pieces.

        Raises:
            FrameError: it is no answer of a relay.
        """
        self._rest += data
        at = 0
        while True:
            if self._frame is None:
                end = self._rest.find(b"\n", at, at + _MAX_LINE_BYTES)
                if end < 0:
                    break
                self._frame, at = self._read(bytes(self._rest[at:end])), end + 1
            if len(self._rest) - at < self._frame.size:
                break
            piece = bytes(self._rest[at : at + self._frame.size])
            at += self._frame.size
            frame, self._frame = self._frame, None
            yield frame, piece
        del self._rest[:at]
        if self._frame is None and len(self._rest) >= _MAX_LINE_BYTES:
            raise FrameError("its answer is none: a line does not end", hint=_BROKEN)

    @staticmethod
    def _read(line: bytes) -> Frame:
        try:
            frame = _frame_of(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError("its answer is none: a line is not what it should be", hint=_BROKEN) from error
        if frame.whole is not None and not _is_moment(frame.whole.certificate_until):
            raise FrameError("its answer is none: a certificate ends at no time", hint=_BROKEN)
        if (frame.size > 0) + (frame.whole is not None) + (frame.failed is not None) != 1:
            raise FrameError("its answer is none: a line says nothing, or several things", hint=_BROKEN)
        return frame


def _is_moment(certificate_until: str) -> bool:
    try:
        return not certificate_until or ssl.cert_time_to_seconds(certificate_until) > 0
    except ValueError:
        return False


def _at(questions: Sequence[Question], place: int) -> Question:
    if place >= len(questions):
        raise FrameError("a node has no question", hint="docs/fleet.md says how a relay is asked")
    return questions[place]


def _node(host: str, port: int, address: str) -> Node:
    try:
        return checked_node(host, port, address)
    except NodeListError as error:
        raise FrameError(str(error), hint=error.hint) from error
