"""PrioritizedReplayBuffer: rows are drawn in proportion to their priorities.

A row's priority is a mutable field of the ring, so that snapshots, cuts and restores know it as any
other. The tree that draws follow is derived from it (csrc/core/priorities.h) and never saved. Saved
beside the generator are the highest priority so far, which new rows get, and how many batches were
drawn, which a schedule of beta goes by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pyengine.config import SLOT_WAIT_SECONDS
from pyengine.errors import ConfigError, SchemaError
from pyengine.format.buffer_header import BufferHeader
from pyengine.format.counts import as_count, as_number
from pyengine.format.schema import PRIORITY_FIELD, Field, FieldLike, Schema
from pyengine.replay.batch import Batch
from pyengine.replay.install import PreparedRing
from pyengine.replay.outputs import to_device
from pyengine.replay.reading import no_row_yet
from pyengine.replay.ring import ReplayBuffer
from pyengine.replay.rows import as_array, as_refs, as_rows, merge
from pyengine.replay.segment_files import SegmentFile
from pyengine.replay.steps import NStep
from pyengine.replay.storage import Storage

Beta = float | Callable[[int], float]

_GIVEN = Field((), "float32")


class PrioritizedReplayBuffer(ReplayBuffer):
    """A ReplayBuffer that draws row i with probability P(i) = p_i^alpha / sum of p_k^alpha.

    Proportional prioritisation of Schaul et al. 2016 (arXiv:1511.05952). p_i is the priority last
    given for the row, its absolute TD error usually, plus `epsilon`; a row that was given none has
    the highest p of any row so far, at first 1. `alpha` (0 to 1) is how much priorities count, 0
    not at all. `beta` is the exponent of the importance weights: a number, or a function of the
    number of batches drawn so far, as LinearSchedule is.

    `stratified` (the default, as in the paper) draws one row from each of batch_size equal parts of
    the total; False draws each on its own. Weights are (rows * P(i))^-beta, divided by their
    maximum over the whole ring (`normalize="buffer"`, the default) or over the batch ("batch").

    Stored is p, not p^alpha: a restore takes alpha, beta and epsilon from the script, priorities,
    highest priority, number of batches and generator from the snapshot, and draws what would have
    been drawn. Rows of a plain ring's snapshot get priority 1; rows that were added after a
    snapshot (`replay="latest"`) get the highest that it had.

    The tree takes up to 11 bytes of private memory a row. Everything else is as for ReplayBuffer;
    `sample_sequences` draws uniformly, whatever the priorities.
    Raises SchemaError for a field named "priority", which is an argument here, ConfigError naming
    the argument, expected and got.
    """

    def __init__(
        self,
        schema: Schema | Mapping[str, FieldLike],
        capacity: int,
        *,
        num_envs: int = 1,
        seed: int | None = None,
        alpha: float = 0.6,
        beta: Beta = 0.4,
        epsilon: float = 1e-6,
        stratified: bool = True,
        normalize: Literal["buffer", "batch"] = "buffer",
        slot_wait: float = SLOT_WAIT_SECONDS,
        memory_limit: int | None = None,
    ) -> None:
        given = schema if isinstance(schema, Schema) else Schema(schema)
        _check_names(given)
        if normalize not in ("buffer", "batch"):
            raise ConfigError(
                f"normalize: expected 'buffer' or 'batch', got {normalize!r:.100}",
                field="normalize",
                expected=("buffer", "batch"),
                got=normalize,
            )
        self.alpha = as_number("alpha", alpha, most=1)
        self.epsilon = as_number("epsilon", epsilon, most=float(np.finfo(np.float32).max))
        self._beta: Beta = beta if callable(beta) else as_number("beta", beta)
        self._is_stratified = bool(stratified)
        self._is_by_batch = normalize == "batch"
        super().__init__(
            given.with_priorities(),
            capacity,
            num_envs=num_envs,
            seed=seed,
            slot_wait=slot_wait,
            memory_limit=memory_limit,
        )

    @property
    def beta(self) -> float:
        """The exponent of the next batch's weights."""
        if callable(self._beta):
            return as_number("beta", self._beta(self.draw_count))
        return self._beta

    @property
    def draw_count(self) -> int:
        """How many batches were drawn so far; saved and restored."""
        return self._look(lambda storage: storage.core.draws) or 0

    @property
    def max_priority(self) -> float:
        """The highest stored priority of any row so far, which new rows get; saved and restored."""
        highest = self._look(lambda storage: storage.core.highest_priority)
        return 1.0 if highest is None else highest

    def add(
        self,
        rows: Mapping[str, Any] | None = None,
        /,
        *,
        mask: Any = None,
        priority: Any = None,
        **fields: Any,
    ) -> None:
        """Append one row to each lane, or to the lanes where `mask` is true; see ReplayBuffer.add.

        `priority` (float32, (lanes,)) are the rows' absolute TD errors, None for the highest
        priority so far. PriorityError for one that is negative, infinite or NaN, with the ring
        unchanged.
        """
        fields = merge(rows, fields)
        if priority is not None:
            given = as_rows("priority", _GIVEN, priority, (self.num_envs,))
            fields = {**fields, PRIORITY_FIELD: given}
        self._add(fields, mask)

    def extend(
        self,
        rows: Mapping[str, Any] | None = None,
        /,
        *,
        lane: int | None = None,
        mask: Any = None,
        priority: Any = None,
        **fields: Any,
    ) -> None:
        """Append T rows to each lane, oldest first, or to one `lane`; see ReplayBuffer.extend.

        `priority` (float32, (T, lanes), or (T,) where fields may be so) as for `add`.
        """
        fields = merge(rows, fields)
        if priority is not None:
            fields = {**fields, PRIORITY_FIELD: as_array("priority", _GIVEN, priority)}
        super().extend(fields, lane=lane, mask=mask)

    def sample(
        self,
        batch_size: int,
        beta: float | None = None,
        *,
        n_step: int | NStep | None = None,
        gamma: float | None = None,
        out: Any = None,
        device: Any = None,
    ) -> Batch:
        """Draw `batch_size` rows by priority, with replacement, in the order of their positions.

        `batch.weights` (float32, (batch_size,)) are the importance weights with exponent `beta`,
        None for the ring's own; a tensor where `device` is given. The draw is the ring's own
        PCG64, one number a row. `n_step`, `gamma`, `out`, `device` and errors as for
        ReplayBuffer.sample; and EmptyRingError where every priority is 0, ConfigError for a beta
        that is no number of at least 0.
        """
        weights = np.empty(as_count("batch_size", batch_size), np.float32)
        exponent = self.beta if beta is None else as_number("beta", beta)
        refs = np.empty(len(weights), np.int64)
        weighing = (weights, exponent)
        if n_step is not None or gamma is not None:
            batch = self._steps_batch(
                refs, n_step, gamma, out, device, draw=True, weighing=weighing
            )
        else:
            batch = self._batch(refs, out, device, draw=True, weighing=weighing)
        batch.weights = to_device(weights, device)
        return batch

    def update_priorities(self, refs: Any, priorities: Any) -> int:
        """Give rows new priorities; return how many refs had left the window (ignored).

        `refs` as in `batch.indices`, `priorities` their absolute TD errors (arrays or tensors, one
        each; of a ref given twice the later counts). All change at once; waits for adds and the cut
        of a snapshot, which has all of them or none.

        Raises PriorityError for one that is negative, infinite or NaN as float32, FieldShapeError
        for another number of them than of refs, FieldDtypeError, UnknownRefError for a ref never
        handed out; nothing has changed.
        """
        lost = self._look(lambda storage: storage.core.update_priorities(refs, priorities))
        if lost is not None:
            return lost
        wanted = as_refs("refs", refs)
        given = as_rows("priorities", _GIVEN, priorities, (len(wanted),))
        lost = self._look(lambda storage: storage.core.update_priorities(wanted, given))
        if lost is None and len(wanted):
            raise no_row_yet(int(wanted[0]))
        return lost or 0

    def _new_storage(self, line: int) -> Storage:
        storage = super()._new_storage(line)
        storage.core.keep_priorities(
            self._mutable_names.index(PRIORITY_FIELD),
            self.alpha,
            self.epsilon,
            self._is_stratified,
            self._is_by_batch,
        )
        return storage

    def header_record(self) -> dict[str, Any]:
        """Return what a buffer header says of the ring besides its rows; JSON values."""
        record = super().header_record()
        core = (self._storage or self._make_storage()).core
        record["sampler"]["priorities"] = {
            "alpha": self.alpha,
            "epsilon": self.epsilon,
            "highest": core.highest_priority,
            "draws": core.draws,
        }
        return record

    def check_restorable(self, header: BufferHeader) -> None:
        """Raise StateMismatchError unless the saved ring, or a plain one like it, fits this one."""
        super().check_restorable(self._with_field(header))

    def _with_field(self, header: BufferHeader) -> BufferHeader:
        """Return the header of a plain ring as one of a ring whose priorities are not known."""
        saved = header.schema.get("fields", [])
        if any(item["name"] == PRIORITY_FIELD for item in saved):
            return header
        own = self._schema_record["fields"][-1]
        return replace(header, schema={**header.schema, "fields": [*saved, own]})

    def unsaved_values(self, header: BufferHeader) -> dict[str, Any]:
        """Return what mutable fields get, by name, in rows whose values were not saved."""
        values = super().unsaved_values(header)
        if header.priorities is not None:
            values[PRIORITY_FIELD] = header.priorities.highest
        return values

    def compare_settings(self, header: BufferHeader) -> list[str]:
        """Return a line for each setting that the saved ring had otherwise."""
        saved = header.priorities
        if saved is None:
            value = self.unsaved_values(header)[PRIORITY_FIELD]
            return [f"the snapshot has no priorities: every row gets {value}"]
        sides = (("alpha", saved.alpha, self.alpha), ("epsilon", saved.epsilon, self.epsilon))
        return [f"{name} was {there}, is {here}" for name, there, here in sides if there != here]

    def prepare(
        self,
        header: BufferHeader,
        files: Mapping[str, SegmentFile],
        mutable: Mapping[str, NDArray[Any]],
        **options: Any,
    ) -> PreparedRing:
        """Put a snapshot's contents into storage that `exchange` can give to this ring."""
        unsaved = self.unsaved_values(header)[PRIORITY_FIELD]
        known = {PRIORITY_FIELD: np.full(self.capacity, unsaved, np.float32), **mutable}
        prepared = super().prepare(header, files, known, **options)
        prepared.storage.core.highest_priority = unsaved
        return prepared


def _check_names(schema: Schema) -> None:
    for name in schema:
        if name.split("/")[0] == "priority":
            raise SchemaError(
                f"field {name!r}: a PrioritizedReplayBuffer keeps priorities itself, `add` takes "
                "them as `priority`; leave the field out, or give it another name",
                field=name,
                expected="another name",
                got=name,
            )
