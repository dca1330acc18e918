"""Threads for questions that come in crowds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")

MOST = 8
"""Questions of one turn: the first waits for the last."""

END_SECONDS = 5.0
"""That the end waits for a thread: a database that does not answer must not hold it up."""

Answer = Callable[[Sequence[Q]], Sequence[A | Exception]]
"""Answers each question, or says by which error it has none. What it raises is the error of all."""


class Batches(Generic[Q, A]):
    """A thread takes what waits, answers it together, and tells the event loop of all at once: to tell it of
    each, and to be woken for each, took a tenth of a resolve."""

    def __init__(self, answer: Answer[Q, A]) -> None:
        self._answer = answer
        self._waiting: SimpleQueue[tuple[Q, asyncio.Future[A]] | None] = SimpleQueue()

    @contextmanager
    def running(self, threads: int) -> Iterator[None]:
        """Has so many threads for the length of the block. What waits when it ends is answered before, if it
        takes no thread longer than ``END_SECONDS``."""
        loop = asyncio.get_running_loop()
        made = [threading.Thread(target=self._serve, args=(loop,), daemon=True) for _ in range(threads)]
        for thread in made:
            thread.start()
        try:
            yield
        finally:
            for _ in made:
                self._waiting.put(None)
            for thread in made:
                thread.join(END_SECONDS)

    async def ask(self, question: Q) -> A:
        """Its answer; or raises its error."""
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.put((question, future))
        return await future

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while turn := self._turn():
            questions, futures = zip(*turn, strict=True)
            try:
                answers = self._answer(questions)
            except Exception as error:  # noqa: BLE001 - whoever asked has it
                answers = [error] * len(turn)
            with suppress(RuntimeError):  # the loop did not wait for it
                loop.call_soon_threadsafe(_told, futures, answers)

    def _turn(self) -> list[tuple[Q, asyncio.Future[A]]]:
        """What waits now, or else the next; nothing at the end."""
        taken = []
        first = self._waiting.get()
        while first is not None:
            taken.append(first)
            if len(taken) == MOST:
                break
            try:
                first = self._waiting.get_nowait()
            except Empty:
                break
        else:
            if taken:
                self._waiting.put(None)  # for the next turn of this thread
        return taken


def _told(futures: Sequence[asyncio.Future[A]], answers: Sequence[A | Exception]) -> None:
    for future, answer in zip(futures, answers, strict=True):
        if future.done():  # who asked went away
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
