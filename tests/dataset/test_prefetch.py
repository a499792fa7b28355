from __future__ import annotations

import itertools
import threading

import pytest

from tokpipe.dataset.prefetch import Prefetcher


def test_gives_everything_in_order_and_ends():
    prefetcher = Prefetcher(iter(range(100)), 3)
    assert list(prefetcher) == list(range(100))
    prefetcher.close()


def test_reads_ahead_no_further_than_its_depth():
    taken = []
    ready = threading.Event()

    def numbers():
        for number in itertools.count():
            taken.append(number)
            if number == 4:
                ready.set()
            yield number

    prefetcher = Prefetcher(numbers(), 3)
    items = iter(prefetcher)
    assert next(items) == 0
    assert ready.wait(10)  # 1, 2 and 3 wait in the queue, 4 in the thread's hand
    prefetcher.close()
    assert taken == [0, 1, 2, 3, 4]


def test_failure_comes_after_what_came_before_it():
    def failing():
        yield 1
        raise OSError("the disk is gone")

    prefetcher = Prefetcher(failing(), 3)
    items = iter(prefetcher)
    assert next(items) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(items)
    prefetcher.close()
