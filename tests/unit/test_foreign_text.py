"""Text that other programs chose."""

from __future__ import annotations

import subprocess

import pytest

from ingero.foreign_text import MAX_CHARACTERS, decoded, label, operand, shell_word, visible

NASTY = (
    *("x;touch PWNED;.scope", "job$(touch PWNED)", "`id`", "a'b", 'a"b', "a b", "-rf", "*", "~", "<in>", "#x", "!x"),
    *("a\\b", "a\nb", "\x1b[2J", "\x9b31m", "\u202eevil", "é", "\udcff", "a\\'b\n", "{a,b}", "&", "|", "$HOME"),
)


def test_bytes_that_are_no_utf8_become_text() -> None:
    assert decoded(b"\xffok\xfe") == "\ufffdok\ufffd"


def test_text_is_cut_where_it_is_too_long() -> None:
    assert decoded(b"a" * 100_000) == "a" * MAX_CHARACTERS + "…"
    assert decoded("é".encode() * 5, most=3) == "ééé…"


def test_name_in_a_file_is_cut_where_it_is_too_long() -> None:
    assert label("a" * 100_000) == "a" * MAX_CHARACTERS + "…"
    assert label("a\x1b") == "a\\x1b"


def test_what_acts_on_a_terminal_is_seen_as_an_escape() -> None:
    assert visible("a\x1b]0;x\x07\r\n\u202eb\x9b\udc80\u2028") == (r"a\x1b]0;x\x07\r\n\u202eb\x9b\udc80\u2028")
    assert visible("ordinary é 模型 \u00a0x") == "ordinary é 模型 \u00a0x"
    assert visible("a\nb\x1b", keeps_lines=True) == "a\nb\\x1b"


@pytest.mark.parametrize("text", NASTY)
def test_word_reaches_the_program_that_the_shell_starts(text: str) -> None:
    answer = subprocess.run(["bash", "-c", f"printf %s {shell_word(text)}x"], capture_output=True, check=True)
    assert answer.stdout == text.encode("utf-8", "surrogateescape") + b"x"
    assert shell_word(text).isprintable()


def test_operand_is_no_option() -> None:
    assert operand("--host=a;b") == "-- '--host=a;b'"
    assert operand("a.service") == "a.service"


def test_ordinary_words_stay_as_they_are() -> None:
    for text in ("user@1000.service", "/kubepods/pod1_a", "train-0"):
        assert shell_word(text) == text
