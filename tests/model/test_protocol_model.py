"""The state words of trainer and writer, explored completely; and models broken on purpose.

PYENGINE_MODEL=full explores deeper limits too (`make sanitize`; some minutes, some gigabytes).
"""

from __future__ import annotations

import os

import pytest
from explorer import explore
from words import RULES, SWAPS, Limits

STAGING_REUSE = Limits(rows=4, cuts=2, writer_deaths=1, failures=0, cancels=1, trainer_dies=False)
SLOT_REUSE = Limits(rows=6, cuts=1, writer_deaths=0, failures=1, cancels=1, trainer_dies=False)
DEATHS = Limits(rows=4, cuts=1, writer_deaths=1, failures=1, cancels=1, trainer_dies=True)
LATE = Limits(
    rows=3, cuts=2, writer_deaths=1, failures=0, cancels=1, trainer_dies=True, overlap=True
)
DEEPER = [
    Limits(rows=6, cuts=1, writer_deaths=1, failures=0, cancels=1, trainer_dies=True),
    Limits(rows=6, cuts=2, writer_deaths=0, failures=0, cancels=2, trainer_dies=False),
    Limits(rows=4, cuts=2, writer_deaths=2, failures=1, cancels=1, trainer_dies=False),
    Limits(rows=3, cuts=2, writer_deaths=1, failures=0, cancels=2, overlap=True),
]

SHALLOW = [STAGING_REUSE, SLOT_REUSE, DEATHS, LATE]
LIMITS = SHALLOW + (DEEPER if os.environ.get("PYENGINE_MODEL") == "full" else [])

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_no_order_of_steps_breaks_the_protocol(limits: Limits) -> None:
    found = explore(limits)
    print(f"{limits}: {found.states} states, {found.steps} steps, {found.ends} ends")
    assert found.broken is None, "\n".join(found.trace)
    assert found.is_finite, "a run can go round for ever"
    assert found.states > 50_000
    assert found.ends > 0


NEEDS_SLOT_REUSE = {"persisting", "written", "persisted", "give back", "pinned"}
NEEDS_OVERLAP = {"versions", "stopped first"}


@pytest.mark.parametrize("name", [*SWAPS, *RULES])
def test_the_model_needs_each_swap_and_rule(name: str) -> None:
    # A plain store in place of a swap, or the rule left out: some order of steps goes wrong.
    limits = SLOT_REUSE if name in NEEDS_SLOT_REUSE else STAGING_REUSE
    limits = LATE if name in NEEDS_OVERLAP else limits
    found = explore(limits, frozenset([name]))
    assert found.broken is not None, f"{name}: nothing went wrong"
    print(f"{name}: {found.broken}: after\n  " + "\n  ".join(found.trace))
