"""Export to a Minari dataset, which `minari.load_dataset` opens by its id.

Minari keeps episodes: T steps and T + 1 observations. Sequences of a lane end where an episode
ended, and where the ring has a break; one that ends otherwise is marked truncated, and so is the
open one at the end of a lane. A row's next_obs must therefore be the obs of the row after it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import warnings
from typing import Any

from pyengine.catalog.new_run import leave_place, place_beside
from pyengine.errors import ConfigError, NoSpaceError
from pyengine.events import Progress, logger
from pyengine.fs import durable
from pyengine.porting.departure import Exported, dropped_note, target_exists
from pyengine.porting.episodes import Episodes
from pyengine.porting.ring_rows import open_ring
from pyengine.porting.roles import find_roles

_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


def export_minari(
    run: str | os.PathLike[str],
    dataset_id: str,
    *,
    ring: str | None = None,
    step: int | None = None,
    env: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write the rows of a snapshot's ring as the Minari dataset `dataset_id`; durable on return.

    `dataset_id` is Minari's, "hopper/replay-v0"; the dataset lies where Minari looks for it
    (MINARI_DATASETS_PATH). `env`, an id of Gymnasium's, gives the spaces and with it the dataset
    its environment; without it spaces are boxes of the fields' shapes and dtypes. Images are stored
    as they are, not as JPEG. `run`, `ring` and `step` as for `export_npz`, and memory too: an
    episode of any length is written in pieces.

    Raises UnportableError where the ring's rows are no episodes, TargetExistsError where there is
    such a dataset (`force=True` replaces it), ConfigError where Minari is not installed or the id
    is none of its; else as `export_npz` does. Under the id is then what was there before; where a
    kill left it aside, the next export of this id puts it back.
    """
    minari = _import()
    target = _dataset_path(dataset_id)
    if os.path.lexists(target) and not force:
        raise target_exists(target)
    with open_ring(run, ring=ring, step=step) as rows:
        roles = find_roles(rows.schema, rows.info.path, "Minari")
        writer = Episodes(rows, roles, progress)
        with place_beside(target) as place:
            _settle(target, place)
            if os.path.lexists(target) and not force:
                raise target_exists(target)
            made = os.path.join(place, "dataset")
            _write(minari, os.path.join(made, "data"), dataset_id, env, writer)
            _appear(made, target, force=force)
            try:
                _settle(target, place)
            except (OSError, NoSpaceError) as error:
                aside = _aside(target)
                logger.warning("%s was replaced and stays until the next export: %s", aside, error)
            leave_place(place)
        notes = list(dropped_note(rows))
        others = [name for name in rows.schema if name not in roles.names]
        if others:
            notes.append(f"left out: {', '.join(others)}")
        if writer.cut_short:
            notes.append(f"{writer.cut_short} episodes that did not end are marked truncated")
        return Exported(
            path=target,
            format="minari",
            snapshot=rows.info.path,
            ring=rows.name,
            rows=writer.rows,
            lanes=rows.num_lanes,
            episodes=writer.episodes,
            notes=tuple(notes),
        )


def _import() -> Any:
    try:
        import minari
        import minari.dataset._storages.hdf5_storage
    except ImportError as error:
        raise ConfigError(
            f"a Minari dataset needs Minari with HDF5 ({error}): pip install 'pyengine-rl[minari]'"
        ) from error
    return minari


def _dataset_path(dataset_id: str) -> str:
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.storage.datasets_root_dir import get_dataset_path

    try:
        parse_dataset_id(dataset_id)
    except ValueError as error:
        raise ConfigError(f"dataset id: {error}", field="dataset_id", got=dataset_id) from error
    return os.path.abspath(str(get_dataset_path(dataset_id)))


def _write(minari: Any, data_path: str, dataset_id: str, env: str | None, writer: Episodes) -> None:
    from minari.dataset.minari_storage import MinariStorage

    durable.make_directory(data_path)
    spaces = writer.spaces() if env is None else _env_spaces(env)
    writer.fit(spaces)
    storage = MinariStorage.new(data_path, **spaces, data_format="hdf5", jpeg_encoding=False)
    about = {
        "dataset_id": dataset_id,
        "minari_version": minari.__version__,
        "description": f"replay of {writer.source}, exported by pyengine",
    }
    storage.update_metadata(about)
    storage.update_episodes(writer.buffers())
    if writer.pieced:
        # Minari takes the length of the last piece for that of the episode.
        lengths = [{"id": one, "total_steps": count} for one, count in writer.pieced.items()]
        storage.update_episode_metadata(lengths, writer.pieced)


def _env_spaces(env: str) -> dict[str, Any]:
    import gymnasium

    try:
        with contextlib.closing(gymnasium.make(env)) as made, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {
                "observation_space": made.observation_space,
                "action_space": made.action_space,
                "env_spec": made.spec,
            }
    except gymnasium.error.Error as error:
        raise ConfigError(f"env={env!r}: {error}", field="env", got=env) from error


def _aside(target: str) -> str:
    """Return where a dataset lies while another takes its place; hidden, as Minari sees it."""
    directory, name = os.path.split(target)
    return os.path.join(directory, f".replaced-{name}")


def _settle(target: str, place: str) -> None:
    """Remove what lies aside, its place being taken; put it back where a kill left that empty.

    Durable where it is put back. NoSpaceError, OSError.
    """
    aside = _aside(target)
    if not os.path.lexists(aside):
        return
    if os.path.lexists(target):
        # Under this name first, so that one half removed is never put back.
        replaced = os.path.join(place, "replaced")
        durable.rename(aside, replaced)
        durable.remove_tree(replaced)
    else:
        durable.rename(aside, target)
        durable.fsync_directory(os.path.dirname(target))


def _appear(made: str, target: str, *, force: bool) -> None:
    """Give a dataset its name, by `force` that of one which is moved aside; durable on return.

    An exception takes the new one away again and puts the old one back; where even that fails, the
    old one stays aside, whole.
    """
    for directory, _, files in os.walk(made):
        for name in files:
            durable.fsync_file(os.path.join(directory, name))
        durable.fsync_directory(directory)
    try:
        if force and os.path.lexists(target):
            durable.rename(target, _aside(target))
        durable.rename(made, target)
        durable.fsync_directory(os.path.dirname(target))
    except BaseException as error:
        _take_back(made, target)
        if isinstance(error, OSError) and error.errno in _TAKEN:
            raise target_exists(target) from error
        raise


def _take_back(made: str, target: str) -> None:
    aside = _aside(target)
    if not os.path.lexists(made) and os.path.lexists(target):
        durable.rename(target, made)
    if os.path.lexists(aside) and not os.path.lexists(target):
        durable.rename(aside, target)
