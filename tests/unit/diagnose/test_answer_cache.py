"""What one look has found out stays known to the next, for as long as each asks."""

from __future__ import annotations

from ingero.diagnose.evidence.answer_cache import AnswerCache


def test_an_answer_is_kept_for_as_long_as_each_look_asks() -> None:
    answers, asked = AnswerCache(), []

    def look(number: int | None) -> int | None:
        found = None if number is None else answers.get(("gap", number), lambda: asked.append(number) or 10 * number)
        answers.end_pass()
        return found

    assert [look(1), look(1), look(1)] == [10, 10, 10]
    assert asked == [1]
    look(None)
    assert look(1) == 10
    assert asked == [1, 1], "a look did without it"
