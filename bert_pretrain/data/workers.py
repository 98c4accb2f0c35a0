"""Chunks to examples by worker processes, in the order of the chunks."""

import collections
import concurrent.futures
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterable, Iterator

from bert_pretrain import tokenizer as tokenizer_lib
from bert_pretrain.data import examples, partition
from bert_pretrain.data.config import PrepareConfig

_worker_tokenizer: tokenizer_lib.Tokenizer | None = None


def _start_worker(vocab_file: str, lower_case: bool) -> None:
    global _worker_tokenizer
    # String operations only: no GPU, no log lines, one core a worker.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    _worker_tokenizer = tokenizer_lib.Tokenizer(
        tokenizer_lib.Vocabulary.load(vocab_file), lower_case
    )


def _end_with_parent() -> None:
    # A killed parent tells its workers nothing: they would wait for ever.
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(chunk, config):
    return examples.make_examples(chunk, _worker_tokenizer, config)


def map_chunks(
    chunks: Iterable[partition.Chunk],
    vocab_file: str,
    config: PrepareConfig,
    workers: int,
) -> Iterator[examples.ChunkExamples]:
    """Makes the examples of each chunk; few chunks are in work at once.

    Args:
        chunks: From `partition.chunks`.
        vocab_file: The vocabulary.
        config: The flags.
        workers: Processes to use; one is this process.

    Yields:
        The examples, in the order of the chunks.

    Raises:
        OSError: A worker ended before its work was done.
    """
    chunks = iter(chunks)
    # Before any process starts: most faults of the input show here.
    first = next(chunks)
    if workers == 1:
        tokenizer = tokenizer_lib.Tokenizer(
            tokenizer_lib.Vocabulary.load(vocab_file), config.do_lower_case
        )
        yield examples.make_examples(first, tokenizer, config)
        for chunk in chunks:
            yield examples.make_examples(chunk, tokenizer, config)
        return
    # Spawned, as TensorFlow does not survive a fork. Given the name of the
    # vocabulary, not its content: more than a pipe holds would make this
    # process wait for ever for a worker that dies as it starts.
    pool = concurrent.futures.ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),
        _start_worker,
        (vocab_file, config.do_lower_case),
    )
    in_work = collections.deque([pool.submit(_work, first, config)])
    try:
        for chunk in chunks:
            in_work.append(pool.submit(_work, chunk, config))
            if len(in_work) > 3 * workers:
                yield in_work.popleft().result()
        while in_work:
            yield in_work.popleft().result()
    except concurrent.futures.process.BrokenProcessPool as error:
        if sys.version_info < (3, 11, 6):
            # There the pool waits for ever for a thread that writes to the
            # dead (python/cpython#94777); later ones close this end too.
            pool._call_queue._reader.close()
        raise OSError(
            "A worker process ended before its work, perhaps for want of "
            f"memory. Try fewer than --workers={workers}."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
