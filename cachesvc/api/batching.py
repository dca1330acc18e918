"""Answer questions that arrive together in batches, on a few threads."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from cachesvc import spans

Q = TypeVar("Q")
A = TypeVar("A")

MAX_BATCH = 8
"""Questions of one batch, at most: the first waits for the answer to the last."""

SHARED = 10_000
"""Questions that one answer is for, at most."""

END_SECONDS = 5.0
"""Seconds that the end waits for a thread: a database that does not answer must not delay it."""

_Question = tuple[Q, "asyncio.Future[A]", Any]
"""Type of a question with the future of its answer, and the context of its request's span."""
Answer = Callable[[Sequence[Q]], Sequence[A | Exception]]
"""Returns for each question its answer or its error. What it raises is the error of all of them."""


class Batches(Generic[Q, A]):
    """Batches questions: a thread takes those that wait, answers them together, and passes all answers to the
    event loop in one call. One call for each answer took a tenth of a resolve.

    Who asks is served in turn, so that many questions of one asker do not stall another's.
    """

    def __init__(self, answer: Answer[Q, A], most: int = MAX_BATCH) -> None:
        """``most``: questions of one batch."""
        self._answer, self._most = answer, most
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[_Question[Q, A]]] = {}
        self._tickets: SimpleQueue[bool] = SimpleQueue()  # true for each question, false to end a thread

    @contextmanager
    def running(self, threads: int) -> Iterator[None]:
        """Runs ``threads`` threads for the length of the block. Questions that wait at its end are answered
        before it ends, unless a thread needs longer than ``END_SECONDS``."""
        loop = asyncio.get_running_loop()
        workers = [threading.Thread(target=self._serve, args=(loop,), daemon=True) for _ in range(threads)]
        for thread in workers:
            thread.start()
        try:
            yield
        finally:
            for _ in workers:
                self._tickets.put(False)
            for thread in workers:
                thread.join(END_SECONDS)

    async def ask(self, question: Q, asker: str = "") -> A:
        """Returns the answer to ``question`` of ``asker``, or raises its error."""
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.setdefault(asker, deque()).append((question, future, spans.current()))
        self._tickets.put(True)
        return await future

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while batch := self._next_batch():
            questions, futures, contexts = zip(*batch, strict=True)
            try:
                # What a batch reads is in the trace of its first question.
                with spans.within(contexts[0]):
                    answers = self._answer(questions)
            except Exception as error:  # noqa: BLE001 - the callers get it
                answers = [error] * len(batch)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_set_results, futures, answers)

    def _next_batch(self) -> list[_Question[Q, A]]:
        """Waits for a question and takes the others that wait too; empty at the end."""
        taken = []
        ticket = self._tickets.get()
        while ticket:
            taken.append(self._next_question())
            if len(taken) == self._most:
                break
            try:
                ticket = self._tickets.get_nowait()
            except Empty:
                break
        else:
            if taken:
                self._tickets.put(False)  # ends this thread after the batch
        return taken

    def _next_question(self) -> _Question[Q, A]:
        """Takes the oldest question of the asker whose turn it is, and puts that asker last."""
        with self._lock:
            asker, questions = next(iter(self._waiting.items()))
            del self._waiting[asker]
            question = questions.popleft()
            if questions:
                self._waiting[asker] = questions
        return question


def _set_results(futures: Sequence[asyncio.Future[A]], answers: Sequence[A | Exception]) -> None:
    for future, answer in zip(futures, answers, strict=True):
        if future.done():  # its caller went away
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)


def shared(make: Callable[[], A]) -> Answer[None, A]:
    """Return what makes one answer for all who wait for it, so that a crowd costs what one of it costs. Each
    gets one that was begun after it had asked."""

    def answer(questions: Sequence[None]) -> Sequence[A]:
        return [make()] * len(questions)

    return answer
