"""Files that are there whole or not at all."""

import io
import os
import pathlib

import numpy as np


def write(path: pathlib.Path, content: bytes, mode: int = 0o666) -> None:
    """Writes under a temporary name first, so that a file is there whole or not at all."""
    partial = path.with_name(f'{path.name}.partial')
    partial.unlink(missing_ok=True)
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), 'wb') as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        rename(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_arrays(path: pathlib.Path, mode: int = 0o666, **arrays: np.ndarray) -> None:
    """Writes an .npz, whole or not at all."""
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    write(path, content.getvalue(), mode)


def rename(path: pathlib.Path, target: pathlib.Path) -> None:
    """Gives a file or folder its name, which stays even if the machine stops."""
    os.replace(path, target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
