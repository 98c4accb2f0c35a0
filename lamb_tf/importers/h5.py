"""The state of Keras's Lamb in a `.keras` or `.weights.h5` file.

These hold the optimizer's arrays in an order, and no names.
"""

import io
import json
import zipfile
from typing import Any

import numpy as np

from lamb_tf.importers.states import PeerLayer, PeerState, doubts

SUFFIXES = (".keras", ".h5")


def read(path: str) -> PeerState:
    """Returns the state of the Lamb in a file, as NumPy arrays.

    Args:
        path: A `.keras` file of a compiled model, or a `.weights.h5`
            file with its optimizer.

    Raises:
        ValueError: If there is no such file, or no Lamb in it, or one
            with more than two arrays a variable.
    """
    import h5py

    source, optimizer = path, None
    try:
        if path.endswith(".keras"):
            with zipfile.ZipFile(path) as archive:
                config = json.loads(archive.read("config.json"))
                source = io.BytesIO(archive.read("model.weights.h5"))
            optimizer = _compiled_with(path, config)
        with h5py.File(source, "r") as file:
            group = file.get("optimizer/vars")
            if group is None:
                raise ValueError(
                    f"{path!r} holds no optimizer. Compile the model with "
                    "it, fit, and save the model."
                )
            name = str(group.attrs.get("name", ""))
            arrays = [np.array(group[str(i)]) for i in range(len(group))]
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path!r} is no file of Keras 3: {error}") from error
    # A counter; a learning rate, unless it is a schedule; two moments of
    # each variable. So the count tells whether there is a rate.
    start = 2 - len(arrays) % 2
    pairs = list(zip(arrays[start::2], arrays[start + 1 :: 2], strict=True))
    if any(m.shape != v.shape or m.dtype.kind != "f" for m, v in pairs):
        raise ValueError(
            f"{path!r} holds more of its optimizer than two float moments of "
            "each variable: averages or accumulators. They have no names "
            "there: save a `tf.train.Checkpoint` with the optimizer."
        )
    return PeerState(
        source="keras",
        where=path,
        iterations=int(arrays[0]),
        layers=[PeerLayer(None, None, {"m": m, "v": v}) for m, v in pairs],
        scalars={} if start == 1 else {"learning_rate": float(arrays[1])},
        remarks=[] if optimizer else doubts(name),
    )


def _compiled_with(path: str, config: dict[str, Any]) -> str:
    """Returns the class of the optimizer in a `.keras` file's config."""
    optimizer = (config.get("compile_config") or {}).get("optimizer") or {}
    name = optimizer.get("class_name")
    if name != "Lamb":
        raise ValueError(
            f"The model in {path!r} was compiled with "
            f"{optimizer.get('registered_name') or name!r}, not with Keras's "
            "Lamb."
        )
    for key in ("use_ema", "gradient_accumulation_steps"):
        if optimizer["config"].get(key):
            raise ValueError(
                f"The optimizer in {path!r} has {key}="
                f"{optimizer['config'][key]}, and its arrays have no names. "
                "Save a `tf.train.Checkpoint` with the optimizer."
            )
    return name
