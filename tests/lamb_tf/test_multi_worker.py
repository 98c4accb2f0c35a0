"""Two real workers: the same weights as one process."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.lamb_tf import multi_worker, processes


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """Returns what each of two processes ended with."""
    folder = tmp_path_factory.mktemp("workers")
    ports = processes.free_ports(2)
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    paths = [folder / f"{index}.npz" for index in range(2)]
    processes.run_together(
        "tests.lamb_tf.multi_worker",
        [[str(path)] for path in paths],
        [
            {
                "TF_CONFIG": json.dumps(
                    {
                        "cluster": cluster,
                        "task": {"type": "worker", "index": index},
                    }
                )
            }
            for index in range(2)
        ],
    )
    return [dict(np.load(path)) for path in paths]


@pytest.mark.parametrize("case", multi_worker.CASES)
def test_two_workers_end_where_one_process_does(workers, case):
    one = multi_worker.weights_after(case, tf.distribute.get_strategy())
    for key, value in one.items():
        first, second = (worker[f"{case}/{key}"] for worker in workers)
        np.testing.assert_array_equal(first, second)
        # Sums in another order: two roundings of weights of size 1.
        np.testing.assert_allclose(first, value, rtol=2.4e-7, atol=2.4e-7)


def test_fit_of_keras_3_takes_no_workers(workers):
    # Not with SGD either: it averages a batch over the workers outside of
    # a step. Where this fails, `multi_worker.CASES` can have it.
    assert not any(worker["keras 3 can fit"] for worker in workers)
