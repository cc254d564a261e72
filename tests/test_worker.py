"""Workers: jobs in their order, beside the one who gives them."""

from __future__ import annotations

import threading

from engram.worker import InlineWorker, ThreadWorker

DEADLINE_S = 60


def test_jobs_are_done_in_their_order_on_another_thread():
    """One after the other, and `close` waits for all of them."""
    worker, done, threads = ThreadWorker("a-worker"), [], set()
    for number in range(20):
        worker.submit(lambda n=number: (done.append(n), threads.add(threading.current_thread().name)))
    worker.close()

    assert done == list(range(20))
    assert threads == {"a-worker"}


def test_who_waits_looks_after_each_job_and_each_word():
    """`wait` returns when a job has made it so, or somebody who calls `notify`."""
    worker, said = ThreadWorker("a-worker"), []
    worker.submit(lambda: said.append("job"))
    worker.wait(lambda: "job" in said)

    def tell() -> None:
        said.append("word")
        worker.notify()

    telling = threading.Timer(0.01, tell)
    telling.start()
    worker.wait(lambda: "word" in said)
    telling.join(DEADLINE_S)
    assert said == ["job", "word"]


def test_what_was_not_begun_in_time_is_not_done():
    """A job that hangs is not waited for, and those behind it are given up."""
    worker, gate, done = ThreadWorker("a-worker"), threading.Event(), []
    begun = threading.Event()
    worker.submit(lambda: (begun.set(), gate.wait(DEADLINE_S), done.append("first")))
    worker.submit(lambda: done.append("second"))
    assert begun.wait(DEADLINE_S)
    worker.close(0)
    gate.set()
    worker._thread.join(DEADLINE_S)

    assert done == ["first"]


def test_an_inline_worker_has_done_a_job_when_it_returns():
    """For who has no thread to spare."""
    worker, done = InlineWorker(), []
    worker.submit(lambda: done.append(1))
    assert done == [1]
    worker.wait(lambda: bool(done))
    worker.close()
