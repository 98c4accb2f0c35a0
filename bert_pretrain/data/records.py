"""The record: one example as a TFRecord of constant size.

A record is a `tf.train.Example` of three bytes features, in this order:

* `input_ids`: seq_length little-endian ids, `[CLS] A [SEP] B [SEP]`, then
  `[PAD]`; uint16, or int32 for a vocabulary above 65,536.
* `next_sentence_label`: one byte, 0 = B follows A, 1 = B is random, as
  google-research/bert has it.
* `segment_lengths`: two little-endian uint16, the tokens of segment 0 with
  [CLS] and the first [SEP], and of segment 1 with the last [SEP].

Protocol buffers write integers in as many bytes as they need, raw bytes in as
many as they are. So every record of a length has one size, record i begins at
i * record_bytes, and a shard is one NumPy structured array: no parsing.
`tf.data.TFRecordDataset` and `tf.io.parse_example` read it all the same.
"""

import functools
import os
from typing import NamedTuple

import numpy as np

from bert_pretrain import files
from bert_pretrain.data.crc import masked_crc
from bert_pretrain.data.manifest import ShardInfo

_FIELDS = ("input_ids", "next_sentence_label", "segment_lengths")


class Records(NamedTuple):
    """Examples: ids [N, S], segment_lengths uint16 [N, 2], labels uint8 [N].

    From `read_shard` these are read-only views into the file's bytes.
    """

    ids: np.ndarray
    segment_lengths: np.ndarray
    labels: np.ndarray


def id_dtype_for(vocab_size: int) -> str:
    """The smallest dtype name that records hold ids of a vocabulary in."""
    return "uint16" if vocab_size <= 65536 else "int32"


def record_bytes(seq_length: int, id_dtype: str) -> int:
    """Bytes per record of a shard, framing included."""
    return _layout(seq_length, id_dtype).itemsize


def concatenate(parts: list[Records]) -> Records:
    """Joins examples of one length, in order; at least one part."""
    return Records(*map(np.concatenate, zip(*parts, strict=True)))


def write_shard(
    path: str,
    ids: np.ndarray,
    segment_lengths: np.ndarray,
    labels: np.ndarray,
) -> ShardInfo:
    """Writes a shard, whole or not at all.

    Args:
        path: Where; local or remote. The `file` of the result is its name
            with that of its folder, as a manifest has it.
        ids: uint16 or int32 [N, S], N >= 1.
        segment_lengths: integers [N, 2], at most S in sum.
        labels: integers [N], 0 or 1.

    Returns:
        Name, examples, size and checksum.

    Raises:
        ValueError: The arrays do not fit each other or the format.
        OSError: The disk is full or the place not writable; nothing is left.
    """
    count, seq_length = ids.shape
    if segment_lengths.shape != (count, 2) or labels.shape != (count,):
        raise ValueError(
            f"{path}: ids {ids.shape}, segment_lengths "
            f"{segment_lengths.shape} and labels {labels.shape} differ in N"
        )
    if count == 0:
        raise ValueError(f"{path}: a shard holds at least one example")
    shard = np.empty(count, _layout(seq_length, ids.dtype.name))
    for name, constant in _constants(seq_length, ids.dtype.name).items():
        shard[name] = constant
    shard["input_ids"] = ids
    shard["segment_lengths"] = segment_lengths
    shard["next_sentence_label"] = labels
    shard["data_crc"] = masked_crc(_payload(shard))
    files.write_bytes(path, shard.view(np.uint8))
    folder, name = os.path.split(path)
    return ShardInfo(
        file=f"{os.path.basename(folder)}/{name}",
        examples=count,
        bytes=shard.nbytes,
        sha256=files.sha256(shard.view(np.uint8)),
    )


def read_shard(
    path: str, seq_length: int, id_dtype: str, *, check_crc: bool = False
) -> Records:
    """Reads a shard in one go.

    Args:
        path: The file, local or remote.
        seq_length: S, tokens per example.
        id_dtype: "uint16" or "int32", as the manifest has it.
        check_crc: Whether to compute the checksum of every record.

    Returns:
        Read-only views: ids `id_dtype` [N, S], segment_lengths uint16 [N, 2],
        labels uint8 [N].

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Truncated, of another length, or damaged; names the file
            and the byte offset.
    """
    return parse_shard(
        path,
        files.read_bytes(path),
        seq_length,
        id_dtype,
        check_crc=check_crc,
    )


def parse_shard(
    path: str,
    content: bytes,
    seq_length: int,
    id_dtype: str,
    *,
    check_crc: bool = False,
) -> Records:
    """As `read_shard`, from bytes already read; `path` is for messages."""
    layout = _layout(seq_length, id_dtype)
    size, step = len(content), layout.itemsize
    if size == 0:
        raise ValueError(f"{path}: empty, byte 0: expected a record")
    shard = np.frombuffer(content, layout, count=size // step)
    for name, constant in _constants(seq_length, id_dtype).items():
        # Compared as bytes, so that one code serves integers and prefixes.
        found = _field_bytes(shard, name)
        bad = (found != np.frombuffer(constant.tobytes(), np.uint8)).any(axis=1)
        if bad.any():
            row = int(bad.argmax())
            raise ValueError(
                f"{path}: damaged framing at byte "
                f"{row * step + layout.fields[name][1]} (record {row}): not "
                f"a record of {seq_length} {id_dtype} ids in {step} bytes"
            )
    if size % step:
        raise ValueError(
            f"{path}: truncated at byte {size}: record {size // step} begins "
            f"at byte {size // step * step} and needs {step} bytes"
        )
    if check_crc:
        bad = masked_crc(_payload(shard)) != shard["data_crc"]
        if bad.any():
            row = int(bad.argmax())
            raise ValueError(
                f"{path}: checksum of record {row} at byte {row * step} "
                f"({step} bytes) is wrong: {int(bad.sum())} damaged record(s)"
            )
    return Records(
        shard["input_ids"],
        shard["segment_lengths"],
        shard["next_sentence_label"],
    )


# Layout ---------------------------------------------------------------------


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _nested(tag: int, content_bytes: int) -> bytes:
    """Head of a length-delimited protocol buffer field of number `tag`."""
    return bytes([tag << 3 | 2]) + _varint(content_bytes)


@functools.lru_cache
def _prefixes(seq_length: int, id_dtype: str) -> tuple[bytes, ...]:
    """The constant bytes before each feature's value; the first has more."""
    if id_dtype not in ("uint16", "int32"):
        raise ValueError(f"id_dtype is 'uint16' or 'int32', not {id_dtype!r}")
    sizes = (seq_length * np.dtype(id_dtype).itemsize, 1, 4)
    prefixes, total = [], 0
    for name, size in zip(_FIELDS, sizes, strict=True):
        # Features.feature is a map: entry{1: key, 2: Feature{1: BytesList{1}}}
        head = _nested(1, size)
        head = _nested(1, len(head) + size) + head
        head = _nested(2, len(head) + size) + head
        head = _nested(1, len(name)) + name.encode() + head
        head = _nested(1, len(head) + size) + head
        prefixes.append(head)
        total += len(head) + size
    prefixes[0] = _nested(1, total) + prefixes[0]
    return tuple(prefixes)


@functools.lru_cache
def _layout(seq_length: int, id_dtype: str) -> np.dtype:
    """A record with TFRecord framing as a packed NumPy dtype."""
    ids, label, lengths = _prefixes(seq_length, id_dtype)
    little = np.dtype(id_dtype).newbyteorder("<")
    return np.dtype(
        [
            ("length", "<u8"),
            ("length_crc", "<u4"),
            ("ids_prefix", f"V{len(ids)}"),
            ("input_ids", little, (seq_length,)),
            ("label_prefix", f"V{len(label)}"),
            ("next_sentence_label", "u1"),
            ("lengths_prefix", f"V{len(lengths)}"),
            ("segment_lengths", "<u2", (2,)),
            ("data_crc", "<u4"),
        ]
    )


@functools.lru_cache
def _constants(seq_length: int, id_dtype: str) -> dict[str, np.ndarray]:
    """What every record of a length has in common, by field."""
    ids, label, lengths = _prefixes(seq_length, id_dtype)
    payload = _layout(seq_length, id_dtype).itemsize - 16
    length = np.array([payload], "<u8")
    return {
        "length": length,
        "length_crc": masked_crc(length.view(np.uint8)[None]).astype("<u4"),
        "ids_prefix": np.void(ids),
        "label_prefix": np.void(label),
        "lengths_prefix": np.void(lengths),
    }


def _field_bytes(shard: np.ndarray, name: str) -> np.ndarray:
    """Bytes of a field over all records, uint8 [N, size]."""
    field, offset = shard.dtype.fields[name][:2]
    return _bytes_2d(shard)[:, offset : offset + field.itemsize]


def _payload(shard: np.ndarray) -> np.ndarray:
    """Bytes of the serialised examples, without framing, uint8 [N, size]."""
    return _bytes_2d(shard)[:, 12:-4]


def _bytes_2d(shard: np.ndarray) -> np.ndarray:
    return shard.view(np.uint8).reshape(len(shard), shard.dtype.itemsize)
