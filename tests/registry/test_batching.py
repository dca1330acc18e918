"""Test that questions which arrive together are answered in batches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from cachesvc.api.batching import MAX_BATCH, Batches


class Odd(Exception):
    pass


def test_waiting_questions_are_answered_together_and_each_gets_its_own_answer() -> None:
    batch_sizes: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def halves(questions: Sequence[int]) -> list[int | Exception]:
        batch_sizes.append(len(questions))
        begun.set()
        go_on.wait(10)
        return [Odd(number) if number % 2 else number // 2 for number in questions]

    async def ask_all() -> list[int | BaseException]:
        batches = Batches(halves)
        with batches.running(1):
            first = asyncio.create_task(batches.ask(0))
            while not begun.is_set():
                await asyncio.sleep(0.01)
            rest = [asyncio.create_task(batches.ask(number)) for number in range(1, 2 * MAX_BATCH)]
            await asyncio.sleep(0)
            rest[2].cancel()  # One asker went away; the others get their answers.
            go_on.set()
            return await asyncio.gather(first, *rest, return_exceptions=True)

    answers = asyncio.run(ask_all())
    assert batch_sizes == [1, MAX_BATCH, MAX_BATCH - 1]
    assert isinstance(answers.pop(3), asyncio.CancelledError)
    numbers = [number for number in range(2 * MAX_BATCH) if number != 3]
    for number, answer in zip(numbers, answers, strict=True):
        assert (str(answer) == str(number)) if number % 2 else answer == number // 2


@pytest.mark.parametrize("threads", [1, 3])
def test_questions_that_wait_at_the_end_are_answered_and_a_defect_is_raised(threads: int) -> None:
    def answer(questions: Sequence[int]) -> list[int | Exception]:
        if 7 in questions:
            raise Odd
        return list(questions)

    async def ask_all() -> list[int | BaseException]:
        batches = Batches(answer)
        with batches.running(threads):
            tasks = [asyncio.create_task(batches.ask(number)) for number in range(50)]
            await asyncio.sleep(0)
        return await asyncio.gather(*tasks, return_exceptions=True)

    before = threading.active_count()
    answers = asyncio.run(ask_all())
    assert threading.active_count() == before
    assert isinstance(answers[7], Odd)
    failed = [number for number, answer_of_number in enumerate(answers) if answer_of_number != number]
    assert 7 in failed and len(failed) <= MAX_BATCH
    assert all(isinstance(answers[number], Odd) for number in failed)


def test_many_questions_of_one_asker_do_not_delay_another_asker() -> None:
    batches_taken: list[list[str]] = []
    begun, go_on = threading.Event(), threading.Event()

    def answer(questions: Sequence[str]) -> list[str | Exception]:
        batches_taken.append(list(questions))
        begun.set()
        go_on.wait(10)
        return list(questions)

    async def ask_all() -> None:
        batches: Batches[str, str] = Batches(answer)
        with batches.running(1):
            first = asyncio.create_task(batches.ask("first", "greedy"))
            while not begun.is_set():
                await asyncio.sleep(0.01)
            rest = [asyncio.create_task(batches.ask(f"greedy {number}", "greedy")) for number in range(50)]
            rest.append(asyncio.create_task(batches.ask("other", "other")))
            await asyncio.sleep(0)
            go_on.set()
            await asyncio.gather(first, *rest)

    asyncio.run(ask_all())
    assert batches_taken[1][:2] == ["greedy 0", "other"]
    assert sum(map(len, batches_taken)) == 52
