"""Frames between the inference server and its clients."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.demo.workloads.inference_protocol import MAX_FRAME_BYTES, Request, frame, take_frame


@given(contents=st.lists(st.binary(max_size=40), max_size=5), cut=st.integers(min_value=1, max_value=9))
def test_frames_survive_being_cut_anywhere(contents: list[bytes], cut: int) -> None:
    stream = b"".join(map(frame, contents))
    received, seen = bytearray(), []
    for start in range(0, len(stream), cut):
        received += stream[start : start + cut]
        while (content := take_frame(received)) is not None:
            seen.append(content)
    assert seen == contents
    assert not received


def test_a_request_comes_back_as_it_was_sent() -> None:
    content = take_frame(bytearray(Request(prompt_tokens=128, new_tokens=16).pack()))
    assert content is not None
    assert Request.unpack(content) == Request(prompt_tokens=128, new_tokens=16)


def test_a_length_beyond_the_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match=str(MAX_FRAME_BYTES + 1)):
        take_frame(bytearray((MAX_FRAME_BYTES + 1).to_bytes(4, "little")))


def test_a_request_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="8 bytes, not 3"):
        Request.unpack(b"abc")
