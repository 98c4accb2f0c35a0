"""Random bits that are a function of (seed, purpose, example index).

Philox is a counter-based generator: draw `i` of a key costs the same whatever
came before it. Each example of the training stream owns a block of counters,
so its masks and its dropout do not depend on the batch, the replica, the host
or the restart that computes it.
"""

import hashlib

import tensorflow as tf

_WORDS_PER_COUNTER = 4  # Philox 4x32 yields four 32-bit words per counter.
_PHILOX = 1  # tf.random.Algorithm.PHILOX; the same stream on every device.


def stream_key(seed: int, purpose: str) -> int:
    """Returns a 64-bit Philox key for one use of randomness in a run."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def example_bits(
    key: int, stream: int, first_index: tf.Tensor, examples: int, words: int
) -> tf.Tensor:
    """Draws random words for a run of consecutive examples.

    Args:
      key: From `stream_key`.
      stream: The phase. Phases need different numbers of words, so their
        blocks would overlap; it is the upper half of the 128-bit counter.
      first_index: int64 scalar, index of the first example in the stream.
      examples: Number of examples, static.
      words: 32-bit words each example needs, static.

    Returns:
      uint32 [examples, words]; row r depends on (key, stream, first_index + r)
      alone.
    """
    counters = -(-words // _WORDS_PER_COUNTER)
    start = tf.cast(first_index, tf.uint64) * tf.constant(counters, tf.uint64)
    bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[examples, counters * _WORDS_PER_COUNTER],
        key=tf.constant([key], tf.uint64),
        counter=tf.stack([start, tf.constant(stream, tf.uint64)]),
        alg=_PHILOX,
        dtype=tf.uint32,
    )
    return bits[:, :words]
