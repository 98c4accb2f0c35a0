"""The record against TensorFlow's own reader, and every kind of damage."""

import re

import numpy as np
import pytest
import tensorflow as tf

from bert_pretrain.data import records


def example_arrays(count, seq_length, id_dtype, seed=0):
    rng = np.random.default_rng(seed)
    high = 30522 if id_dtype == "uint16" else 250_000
    ids = rng.integers(0, high, (count, seq_length)).astype(id_dtype)
    lengths = rng.integers(2, max(3, seq_length // 2), (count, 2))
    return ids, lengths, rng.integers(0, 2, count)


@pytest.mark.parametrize(
    "seq_length, id_dtype",
    [(5, "uint16"), (128, "uint16"), (512, "uint16"), (4097, "int32")],
)
def test_tensorflow_reads_what_we_write(tmp_path, seq_length, id_dtype):
    ids, lengths, labels = example_arrays(17, seq_length, id_dtype)
    path = str(tmp_path / "length" / "train-00000-of-00001.tfrecord")
    info = records.write_shard(path, ids, lengths, labels)
    raws = list(tf.data.TFRecordDataset(path).as_numpy_iterator())
    assert len(raws) == info.examples == 17
    size = records.record_bytes(seq_length, id_dtype)
    assert info.bytes == 17 * size == tf.io.gfile.stat(path).length
    assert info.file == "length/train-00000-of-00001.tfrecord"
    for i, raw in enumerate(raws):
        feature = tf.train.Example.FromString(raw).features.feature
        read = {key: feature[key].bytes_list.value[0] for key in feature}
        assert set(read) == {
            "input_ids",
            "segment_lengths",
            "next_sentence_label",
        }
        little = np.dtype(id_dtype).newbyteorder("<")
        assert (np.frombuffer(read["input_ids"], little) == ids[i]).all()
        assert (
            np.frombuffer(read["segment_lengths"], "<u2") == lengths[i]
        ).all()
        assert read["next_sentence_label"] == bytes([labels[i]])


def test_bytes_are_those_of_tensorflow(tmp_path):
    ids, lengths, labels = example_arrays(9, 128, "uint16")
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    records.write_shard(ours, ids, lengths, labels)
    with tf.io.TFRecordWriter(theirs) as writer:
        for row in zip(ids, labels, lengths, strict=True):
            features = {
                name: tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[value])
                )
                for name, value in {
                    "input_ids": row[0].astype("<u2").tobytes(),
                    "next_sentence_label": bytes([row[1]]),
                    "segment_lengths": row[2].astype("<u2").tobytes(),
                }.items()
            }
            example = tf.train.Example(
                features=tf.train.Features(feature=features)
            )
            writer.write(example.SerializeToString(deterministic=True))
    assert open(ours, "rb").read() == open(theirs, "rb").read()


def test_read_returns_what_was_written(tmp_path):
    path = str(tmp_path / "shard")
    written = example_arrays(5000, 128, "uint16")
    records.write_shard(path, *written)
    read = records.read_shard(path, 128, "uint16", check_crc=True)
    for a, b in zip(read, written, strict=True):
        assert (a == b).all()
    assert read.ids.dtype == np.uint16
    assert read.segment_lengths.dtype == np.uint16
    assert read.labels.dtype == np.uint8
    assert not read.ids.flags.writeable


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "train-00000-of-00001.tfrecord"
    records.write_shard(str(path), *example_arrays(10, 128, "uint16"))
    return path


def test_every_flipped_byte_is_found(shard):
    content = shard.read_bytes()
    size = records.record_bytes(128, "uint16")
    for offset in range(size * 3, size * 4):
        damaged = bytearray(content)
        damaged[offset] ^= 0x10
        with pytest.raises(ValueError) as error:
            records.parse_shard(
                str(shard), bytes(damaged), 128, "uint16", check_crc=True
            )
        message = str(error.value)
        assert str(shard) in message and "record" in message
        named = int(re.search(r"at byte (\d+)", message)[1])
        # The record that holds the byte, or the very field in its framing.
        assert size * 3 <= named <= offset


@pytest.mark.parametrize("kept", [0, 1, 11, 356, 358, 3000])
def test_truncation_names_file_and_offset(shard, kept):
    shard.write_bytes(shard.read_bytes()[:kept])
    with pytest.raises(ValueError, match=f"byte {kept}") as error:
        records.read_shard(str(shard), 128, "uint16")
    assert str(shard) in str(error.value)


@pytest.mark.parametrize(
    "seq_length, id_dtype", [(512, "uint16"), (64, "uint16"), (128, "int32")]
)
def test_other_length_or_dtype_is_refused(shard, seq_length, id_dtype):
    with pytest.raises(ValueError, match=f"{seq_length} {id_dtype} ids"):
        records.read_shard(str(shard), seq_length, id_dtype)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        records.read_shard(str(tmp_path / "nowhere"), 128, "uint16")


def test_arrays_that_do_not_fit_are_refused(tmp_path):
    ids, lengths, labels = example_arrays(4, 16, "uint16")
    with pytest.raises(ValueError, match="differ in N"):
        records.write_shard(str(tmp_path / "x"), ids, lengths[:3], labels)
    with pytest.raises(ValueError, match="at least one"):
        records.write_shard(
            str(tmp_path / "x"), ids[:0], lengths[:0], labels[:0]
        )
    assert list(tmp_path.iterdir()) == []


def test_id_dtype_by_vocabulary():
    assert records.id_dtype_for(65536) == "uint16"
    assert records.id_dtype_for(65537) == "int32"
