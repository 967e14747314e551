"""JSON with texts that others chose."""

from __future__ import annotations

import json

from ingero.serve.structured.json_text import for_pages, for_programs

NASTY = 'a\x1b[2J\x9b\u202e\\u001b\\\x07\U000e0041\x7fz\n\t"é'


def test_pages_show_what_would_act_and_keep_lines() -> None:
    (shown,) = json.loads(for_pages([NASTY]))
    assert shown == 'a\\x1b[2J\\x9b\\u202e\\u001b\\\\x07\\U000e0041\\x7fz\n\t"é'


def test_programs_get_the_same_text_through_harmless_characters() -> None:
    raw = json.dumps([NASTY], ensure_ascii=False)
    text = for_programs(raw)
    assert json.loads(text) == [NASTY]
    assert text.isprintable()
