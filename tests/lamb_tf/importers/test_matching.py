"""Names of a file paired with ours."""

import pytest

from lamb_tf.importers.matching import match

ADDONS = ["dense/kernel", "dense/bias", "block/dense/kernel", "w"]


def paired(paths, theirs, names=None, allow=()):
    theirs = [(name, f"model/{i}") for i, name in enumerate(theirs)]
    return match(paths, theirs, names or {}, allow)


@pytest.mark.parametrize("prefix", ["", "model/", "outer/model/"])
def test_a_prefix_is_no_hindrance(prefix):
    paths = [prefix + name for name in reversed(ADDONS)]
    assert paired(paths, ADDONS) == {0: 3, 1: 2, 2: 1, 3: 0}
    names = [prefix + name for name in ADDONS]
    assert paired(list(reversed(ADDONS)), names) == {0: 3, 1: 2, 2: 1, 3: 0}


def test_models_of_two_names():
    ours, theirs = ["a/dense/kernel", "a/dense/bias"], ["b/dense/bias"]
    assert paired(ours, [*theirs, "b/dense/kernel"]) == {0: 1, 1: 0}
    # One component in common is not enough to guess from.
    with pytest.raises(ValueError, match="'first/kernel' here has no partner"):
        paired(["first/kernel"], ["second/kernel"])


def test_a_tie_is_not_broken():
    with pytest.raises(
        ValueError,
        match="'m/dense/kernel' here may be any of "
        "'x/dense/kernel', 'y/dense/kernel' in the file",
    ):
        paired(["m/dense/kernel"], ["x/dense/kernel", "y/dense/kernel"])
    # Nor by exclusion: the second could be the first's.
    with pytest.raises(ValueError, match="may be any of"):
        paired(
            ["m/dense/kernel", "n/dense/kernel"],
            ["m/dense/kernel", "y/dense/kernel", "z/dense/kernel"],
        )


def test_shifted_counters_are_not_guessed():
    with pytest.raises(ValueError, match="'dense/kernel' here has no partner"):
        paired(
            ["dense/kernel", "dense_1/kernel"],
            ["dense_1/kernel", "dense_2/kernel"],
        )


def test_names_and_paths_in_the_file():
    ours = ["a/k", "b/k"]
    assert paired(ours, ["x/k", "y/k"], {"a/k": "y/k", "b/k": "model/0"}) == {
        0: 1,
        1: 0,
    }


def test_allowed_to_stay_alone():
    assert paired(["a/k", "new/k"], ["a/k"], allow=["^new/"]) == {0: 0}
    assert paired(["a/k"], ["a/k", "old/k"], allow=["^old/"]) == {0: 0}
    with pytest.raises(ValueError, match="'none', which is found in no"):
        paired(["a/k"], ["a/k"], allow=["none"])
