from __future__ import annotations

import os
import signal
import threading

import pytest

from tokpipe.engine.interrupts import sigterm_as_interrupt


def test_sigterm_is_a_keyboard_interrupt_while_it_lasts():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("no interrupt came")
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_leaves_signals_alone():
    seen = []

    def look() -> None:
        before = signal.getsignal(signal.SIGTERM)
        with sigterm_as_interrupt():
            seen.append(signal.getsignal(signal.SIGTERM) is before)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [True]
