"""Coverage-guided fuzzing of every reader of bytes from a run directory.

    pip install pyengine-rl[fuzz,test]
    python tools/fuzz.py --seconds 60 [READER ...] [--corpus DIRECTORY]

Each reader runs in a process of its own, from the seeds that the property tests start from (golden
files among them). A PyengineError is a refusal and fine; anything else, a hang of 10 s or 2 GiB of
memory ends that reader, and the input that did it is kept in the corpus as crash-... . The exit
status is 1 then.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests" / "fuzz"))

MEMORY_MB = 2048
HANG_SECONDS = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("readers", nargs="*", help="those to fuzz; without any, all")
    parser.add_argument("--seconds", type=int, default=60, help="for each reader")
    parser.add_argument("--corpus", type=Path, help="kept between runs; without it a temporary one")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return fuzz_here(options.readers[0], options.corpus, options.seconds)
    from seeds import SEEDS

    corpus = options.corpus or Path(tempfile.mkdtemp(prefix="pyengine-fuzz-"))
    failed = []
    for reader in options.readers or sorted(SEEDS):
        directory = corpus / reader
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "seed").write_bytes(SEEDS[reader])
        line = [sys.executable, __file__, "--one", reader, "--corpus", str(directory)]
        done = subprocess.run([*line, "--seconds", str(options.seconds)])
        print(f"{reader}: {'clean' if done.returncode == 0 else 'FOUND SOMETHING'}", flush=True)
        if done.returncode != 0:
            failed.append(reader)
    if failed:
        print(f"{', '.join(failed)}: the inputs lie in {corpus}")
    return 1 if failed else 0


def fuzz_here(reader: str, directory: Path, seconds: int) -> int:
    """Fuzz one reader until its time is over; libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["pyengine", "json", "msgpack"]):
        from readers import READERS

        from pyengine.errors import PyengineError

    def read(data: bytes) -> None:
        with contextlib.suppress(PyengineError):
            READERS[reader](reseal(reader, data))

    from seeds import SEEDS, reseal

    read(SEEDS[reader])  # what it imports on the way is no part of any input's time

    atheris.Setup(
        [
            sys.argv[0],
            str(directory),
            f"-artifact_prefix={directory}/",
            f"-max_total_time={seconds}",
            f"-timeout={HANG_SECONDS}",
            f"-rss_limit_mb={MEMORY_MB}",
            "-max_len=65536",
            "-verbosity=0",
            "-print_final_stats=1",
        ],
        read,
    )
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
