"""Coverage-guided fuzzing of every reader of bytes from a run directory, native ones included.

    pip install pyengine-rl[fuzz,test]
    python tools/fuzz.py --seconds 60 [READER ...] [--corpus DIRECTORY]

Each reader runs in a process of its own, from the seeds that the property tests start from (golden
files among them). A PyengineError is a refusal and fine; anything else, a hang of 10 s or 2 GiB of
memory ends that reader, and the input that did it is kept in the corpus as crash-... . The exit
status is 1 then. The reader `native` is the C core by itself (tests/native/guided.c), built with
AddressSanitizer and UBSan by clang; without clang it is left out, with a line.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests" / "fuzz"))

NATIVE = "native"
CORE = REPOSITORY / "csrc" / "core"
NATIVE_TESTS = REPOSITORY / "tests" / "native"
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
    for reader in options.readers or [*sorted(SEEDS), NATIVE]:
        directory = corpus / reader
        directory.mkdir(parents=True, exist_ok=True)
        if reader == NATIVE:
            program = build_native(corpus)
            if program is None:
                print(f"{reader}: left out, it needs clang")
                continue
            line = [str(program), *libfuzzer_options(directory, options.seconds)]
        else:
            (directory / "seed").write_bytes(SEEDS[reader])
            line = [sys.executable, __file__, "--one", reader, "--corpus", str(directory)]
            line += ["--seconds", str(options.seconds)]
        done = subprocess.run(line)
        print(f"{reader}: {'clean' if done.returncode == 0 else 'FOUND SOMETHING'}", flush=True)
        if done.returncode != 0:
            failed.append(reader)
    if failed:
        print(f"{', '.join(failed)}: the inputs lie in {corpus}")
    return 1 if failed else 0


def build_native(directory: Path) -> Path | None:
    """Build the fuzzer of the C core; None where there is no clang."""
    clang = shutil.which("clang")
    if clang is None:
        return None
    program = directory / "guided"
    units = [NATIVE_TESTS / name for name in ("guided.c", "readers.c", "world.c")]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-fsanitize=fuzzer,address,undefined"]
    flags += ["-fno-sanitize-recover=all", f"-I{CORE}", f"-I{NATIVE_TESTS}"]
    sources = [str(unit) for unit in (*units, *sorted(CORE.glob("*.c")))]
    libraries = ["-lpthread", "-ldl", "-lm"]
    subprocess.run([clang, *flags, *sources, "-o", str(program), *libraries], check=True)
    return program


def libfuzzer_options(directory: Path, seconds: int) -> list[str]:
    return [
        str(directory),
        f"-artifact_prefix={directory}/",
        f"-max_total_time={seconds}",
        f"-timeout={HANG_SECONDS}",
        f"-rss_limit_mb={MEMORY_MB}",
        "-max_len=65536",
        "-verbosity=0",
        "-print_final_stats=1",
    ]


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

    atheris.Setup([sys.argv[0], *libfuzzer_options(directory, seconds)], read)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
