from __future__ import annotations

import json

import numpy as np
import pytest

from tokpipe.errors import PartitionError
from tokpipe.partition import Phase, make_phases


def test_phase_survives_json():
    phase = Phase(start=3, global_batch_size=8, seq_len=4, weights=(("hi", 0.25), ("en", 0.75)))
    assert Phase.from_dict(json.loads(json.dumps(phase.as_dict()))) == phase
    assert phase.as_dict()["weights"] == {"en": 0.75, "hi": 0.25}
    assert Phase.from_dict({"global_batch_size": 8, "seq_len": 4}) == Phase(global_batch_size=8, seq_len=4)


def test_numpy_integers_become_plain_ones():
    phase = Phase(start=np.int64(3), global_batch_size=np.int32(8), seq_len=4)
    assert json.dumps(phase.as_dict()) == json.dumps(Phase(start=3, global_batch_size=8, seq_len=4).as_dict())


@pytest.mark.parametrize("change", [{"start": -1}, {"seq_len": 0}, {"global_batch_size": 1.5}, {"global_batch_size": True}])
def test_numbers_that_are_none_are_refused(change):
    with pytest.raises(PartitionError, match=f"{next(iter(change))} of a phase must be an integer"):
        Phase(**({"global_batch_size": 8, "seq_len": 4} | change))


def test_make_phases_takes_a_schedule_or_one_phase():
    one = Phase(global_batch_size=8, seq_len=4, weights=(("en", 1.0),))
    assert make_phases(seq_len=4, global_batch_size=8, weights={"en": 1}, phases=None) == (one,)
    two = Phase(start=5, global_batch_size=16, seq_len=4)
    assert make_phases(seq_len=None, global_batch_size=None, weights=None, phases=[one.as_dict(), two]) == (one, two)
    with pytest.raises(PartitionError, match="phases say weights already"):
        make_phases(seq_len=None, global_batch_size=None, weights={"en": 1}, phases=[one])
    with pytest.raises(PartitionError, match=r"starts \[5, 0\]"):
        make_phases(seq_len=None, global_batch_size=None, weights=None, phases=[two, one])
