"""Every file and directory name of a run directory, in one place.

    RUN/latest  run.json  lock  generations/0001  generations/0001.log  lines/<line>.json
        segments/<ring>/<pool name>  segments/<ring>/<part name>
        snapshots/<snapshot name>/manifest.json ...
        quarantine/  recovery/
    .tmp-g0002-...    being made by generation 2; the janitor of a later one removes it
    .trash-g0002-...  given up; whoever sees it may delete it

Numbers are padded for the eye only: they grow past the padding, and each name parses back to
exactly the text it came from, or not at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MANIFEST = "manifest.json"
MANIFEST_TMP = "manifest.json.tmp"
META = "meta.json"
LATEST = "latest"
RUN_JSON = "run.json"
LOCK = "lock"
GENERATIONS = "generations"
LINES = "lines"
SEGMENTS = "segments"
SNAPSHOTS = "snapshots"
QUARANTINE = "quarantine"
RECOVERY = "recovery"
RUN_DIRECTORIES = (GENERATIONS, LINES, SEGMENTS, SNAPSHOTS, QUARANTINE, RECOVERY)
SUPERVISOR_LOG = "supervisor.jsonl"
BUFFER = "buffer"
BUFFER_HEADER = "buffer_header.json"
LINK_PREFIX = "segment-"
TMP_PREFIX = ".tmp-"
TRASH_PREFIX = ".trash-"

OWNER_BYTE = 0
"""Byte of `generations/<g>` that the trainer of the generation holds."""

WRITER_BYTE = 1
"""Byte of `generations/<g>` that the writer of the generation holds."""

NUMBER_MAX = 2**63 - 1
"""Largest step, generation, sequence or row id in a name."""

_SNAPSHOT = re.compile(r"step-(\d{8,19})\.g(\d{4,19})\.s(\d{4,19})", re.ASCII)
_POOL = re.compile(r"([0-9a-f]{16})-(\d{1,19})-(\d{1,19})-(\d{1,19})-(\d{1,19})\.seg", re.ASCII)
_PART = re.compile(r"([0-9a-f]{16})-part-(\d{1,19})\.seg", re.ASCII)
_GENERATION = re.compile(r"(\d{4,19})", re.ASCII)
_TEMPORARY = re.compile(r"\.(?:tmp|trash)-g(\d{4,19})-.+", re.ASCII | re.DOTALL)
_TEMPORARY_LINE = re.compile(r"\.tmp-g\d{4,19}-([0-9a-f]{16})\.json", re.ASCII)
_QUARANTINED = re.compile(r"(step-[^-]+)(?:-(\d{1,9}))?", re.ASCII)
_MARKER = re.compile(r"(restoring)\.(.+)|(restored)\.(.+)\.marker")
_LINE_FILE = re.compile(r"([0-9a-f]{16})\.json", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class SnapshotName:
    """Name of a snapshot directory. Ordered by (generation, sequence); the step orders nothing."""

    generation: int
    sequence: int
    step: int

    @property
    def text(self) -> str:
        """The directory name, `step-00002345.g0002.s0017`."""
        return f"step-{self.step:08d}.g{self.generation:04d}.s{self.sequence:04d}"


@dataclass(frozen=True, slots=True)
class PoolName:
    """Name of a segment file in the pool; `sequence` makes it unique for ever."""

    line: int
    lane: int
    first_row: int
    row_count: int
    sequence: int

    @property
    def text(self) -> str:
        """The file name, `<line>-<lane>-<first row>-<count>-<sequence>.seg`."""
        return f"{self.line:016x}-{self.lane}-{self.first_row}-{self.row_count}-{self.sequence}.seg"


@dataclass(frozen=True, slots=True)
class PartName:
    """Name of a part file in the pool: the open rows of all lanes at one cut."""

    line: int
    sequence: int

    @property
    def text(self) -> str:
        """The file name, `<line>-part-<sequence>.seg`."""
        return f"{self.line:016x}-part-{self.sequence}.seg"


def snapshot_name(step: int, generation: int, sequence: int) -> str:
    """Return the name of a snapshot directory."""
    return SnapshotName(generation=generation, sequence=sequence, step=step).text


def parse_snapshot_name(text: str) -> SnapshotName | None:
    """Read a snapshot directory name; None where it is not one."""
    numbers = _numbers(_SNAPSHOT.fullmatch(text))
    if numbers is None:
        return None
    step, generation, sequence = numbers
    name = SnapshotName(generation=generation, sequence=sequence, step=step)
    return name if name.text == text else None


def parse_pool_name(text: str) -> PoolName | None:
    """Read the name of a segment file in the pool; None where it is not one."""
    match = _POOL.fullmatch(text)
    numbers = _numbers(match, first=2)
    if match is None or numbers is None:
        return None
    name = PoolName(int(match[1], 16), *numbers)
    return name if name.text == text else None


def parse_part_name(text: str) -> PartName | None:
    """Read the name of a part file in the pool; None where it is not one."""
    match = _PART.fullmatch(text)
    numbers = _numbers(match, first=2)
    if match is None or numbers is None:
        return None
    name = PartName(int(match[1], 16), *numbers)
    return name if name.text == text else None


def segment_link_name(pool_text: str) -> str:
    """Return the name that a pool file's hard link has inside a snapshot."""
    return LINK_PREFIX + pool_text


def line_text(line: int) -> str:
    """Return a line id as it is written everywhere: 16 hexadecimal digits."""
    return f"{line:016x}"


def line_file_name(line: int) -> str:
    """Return the name of a line's record in `lines/`."""
    return f"{line_text(line)}.json"


def parse_line_file_name(text: str) -> int | None:
    """Read the name of a line's record; None where it is not one."""
    match = _LINE_FILE.fullmatch(text)
    return int(match[1], 16) if match else None


def generation_name(generation: int) -> str:
    """Return the name of a claim's file in `generations/`."""
    return f"{generation:04d}"


def generation_log_name(generation: int) -> str:
    """Return the name of the log of a claim's writer in `generations/`."""
    return f"{generation:04d}.log"


def parse_generation_log_name(text: str) -> int | None:
    """Read the name of a log of a claim's writer; None where it is not one."""
    return parse_generation_name(text[:-4]) if text.endswith(".log") else None


def parse_generation_name(text: str) -> int | None:
    """Read the name of a claim's file; None where it is not one (a log, for instance)."""
    numbers = _numbers(_GENERATION.fullmatch(text))
    return numbers[0] if numbers and generation_name(numbers[0]) == text else None


def temporary_name(generation: int, text: str) -> str:
    """Return the name of something that generation `generation` is still making."""
    return f"{TMP_PREFIX}g{generation:04d}-{text}"


def parse_temporary_line(text: str) -> int | None:
    """Return the line whose record a temporary is to become; None where it is no such temporary."""
    match = _TEMPORARY_LINE.fullmatch(text)
    return int(match[1], 16) if match else None


def trash_name(generation: int, text: str) -> str:
    """Return the name of something that generation `generation` has given up."""
    return f"{TRASH_PREFIX}g{generation:04d}-{text}"


def is_temporary(text: str) -> bool:
    """Return whether a name is that of a temporary."""
    return text.startswith(TMP_PREFIX)


def is_trash(text: str) -> bool:
    """Return whether a name is that of trash."""
    return text.startswith(TRASH_PREFIX)


def parse_temporary_generation(text: str) -> int | None:
    """Return the generation that a temporary or trash name tells of, or None."""
    numbers = _numbers(_TEMPORARY.fullmatch(text))
    return numbers[0] if numbers else None


def quarantine_name(snapshot: str, number: int) -> str:
    """Return the name in `quarantine/` of the n-th snapshot (from 1) of this name that is there."""
    return snapshot if number == 1 else f"{snapshot}-{number}"


def quarantine_record_name(name: str) -> str:
    """Return the name of the record that says why `name` lies in `quarantine/`."""
    return f"{name}.json"


def parse_quarantine_name(text: str) -> SnapshotName | None:
    """Read the name of a directory in `quarantine/`, or of its record, as the snapshot's; None:
    it is neither."""
    match = _QUARANTINED.fullmatch(text.removesuffix(".json"))
    return parse_snapshot_name(match[1]) if match else None


def restoring_marker_name(snapshot: str) -> str:
    """Return the name in `recovery/` that says: a restore of this snapshot is being applied."""
    return f"restoring.{snapshot}"


def restored_marker_name(snapshot: str) -> str:
    """Return the name in `recovery/` that says: this snapshot was restored."""
    return f"restored.{snapshot}.marker"


def parse_marker_name(text: str) -> tuple[str, str] | None:
    """Read a name in `recovery/` as ("restoring" or "restored", snapshot); None: it is neither."""
    match = _MARKER.fullmatch(text)
    if match is None:
        return None
    kind, snapshot = (match[1], match[2]) if match[1] else (match[3], match[4])
    return (kind, snapshot) if parse_snapshot_name(snapshot) else None


def is_component_name(text: str) -> bool:
    """Return whether a tracked name can be part of a file name: 1 to 100 bytes, no separators."""
    if not 1 <= len(text.encode("utf-8", "surrogatepass")) <= 100:
        return False
    return text[0] != "." and "/" not in text and "\\" not in text and text.isprintable()


def is_nested_name(text: str) -> bool:
    """Return whether something can be tracked by a name: one such part, or more between slashes,
    of 100 bytes in all."""
    fits = len(text.encode("utf-8", "surrogatepass")) <= 100
    return fits and all(map(is_component_name, text.split("/")))


def path_part(name: str) -> str:
    """Return a component's name as it stands in paths: "member3/policy" is "member3.policy"."""
    return name.replace("/", ".")


def ring_directory(ring: str) -> str:
    """Return the path of a ring's files below a snapshot."""
    return f"{BUFFER}/{path_part(ring)}"


def _numbers(match: re.Match[str] | None, first: int = 1) -> list[int] | None:
    if match is None:
        return None
    numbers = [int(text) for text in match.groups()[first - 1 :]]
    return numbers if all(number <= NUMBER_MAX for number in numbers) else None
