"""Windows of sequences: rows of one lane that follow each other, with no break between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyengine.errors import EmptyRingError
from pyengine.format.counts import as_count
from pyengine.replay.batch import Batch
from pyengine.replay.devices import check_device
from pyengine.replay.outputs import to_device
from pyengine.replay.reading import RingReading, repeat_settled
from pyengine.replay.storage import Storage


class RingSequences(RingReading):
    """Base of ReplayBuffer: draws of sequences. Any thread, at any time."""

    def sample_sequences(
        self,
        batch_size: int,
        length: int,
        *,
        pad: bool = False,
        out: Any = None,
        device: Any = None,
    ) -> Batch:
        """Draw windows of `length` rows of one sequence, uniformly, with replacement.

        Each window of consecutive valid rows without a break between them is drawn alike, wherever
        it begins; so a sequence counts by the windows it has, and one that is shorter than `length`
        has none. With `pad` it has one, which begins with its first row and is zero behind its
        last. (An episode whose oldest rows left the ring is the sequence of those it still has.)

        Each field has shape (batch_size, length, *shape), `indices` are refs of shape (batch_size,
        length), and `mask` of the same shape (bool) says which rows are there: all without `pad`;
        the others' refs are -1. Rows to warm up a recurrent state (burn-in) are yours to slice off:
        draw `burn_in + length`. Initial states can be fields of the schema: theirs are those of the
        first row. `out` takes arrays of these shapes; `device` as for `sample`; `weights` are 1,
        one a window.

        Raises EmptyRingError where no sequence is as long; ConfigError for counts; otherwise as
        `sample`.
        """
        device = check_device(device)
        count = as_count("batch_size", batch_size, least=1)
        length = as_count("length", length, least=1)
        refs, lengths = np.empty(count * length, np.int64), np.empty(count, np.int64)
        shape = (count, length)
        outputs = self._outputs.flat(len(refs), out)
        if out is None:
            outputs = {
                name: array.reshape(*shape, *array.shape[1:]) for name, array in outputs.items()
            }
        ordered = self._outputs.check(outputs, *shape)

        def gather(storage: Storage) -> bool:
            def attempt(is_drawing: bool) -> bool:
                storage.core.gather_windows(refs, lengths, ordered, is_drawing, pad)
                return True

            return repeat_settled(storage, None, attempt, draw=True)

        if not self._with_marks(gather):
            raise EmptyRingError("the ring holds no row yet")
        indices = refs.reshape(shape)
        mask = np.arange(length) < lengths[:, None]
        indices[~mask] = -1
        batch = self._outputs.batch(outputs, indices, out, device)
        batch.mask = to_device(mask, device)
        return batch
