"""No text and no name of ingero uses a word that is retired (tools/retired_words.py)."""

from __future__ import annotations

from check_vocabulary import ROOT, retired_in, summary
from user_texts import user_texts


def test_no_retired_word_is_in_anything_that_somebody_reads() -> None:
    found = list(retired_in(user_texts(ROOT)))
    assert not found, "\n".join((summary(found), "", *map(str, found)))
