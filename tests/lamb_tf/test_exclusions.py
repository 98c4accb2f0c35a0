import warnings

import pytest
import tensorflow as tf

from lamb_tf.exclusions import Exclusions, path_of

NAMES = ["dense/kernel", "dense/bias", "LayerNorm/gamma"]


@pytest.fixture
def variables(host):
    with tf.name_scope("unused"):
        pass
    if host.name == "tf_keras":
        return [tf.Variable(1.0, name=name) for name in NAMES]
    found = []
    for name in NAMES:
        scope, leaf = name.split("/")
        with host.keras.name_scope(scope):
            found.append(host.variable(1.0, leaf))
    return found


def resolve(variables, *lists):
    return Exclusions(*lists).resolve(variables, id)


def test_paths_have_no_output_index(variables):
    assert [path_of(v) for v in variables] == NAMES


def test_none_means_as_the_decay_list(variables):
    flags = resolve(variables, ["bias", "LayerNorm"], None)
    assert flags == [(True, True), (False, False), (False, False)]


def test_empty_list_adapts_all(variables):
    flags = resolve(variables, ["bias", "LayerNorm"], [])
    assert flags == [(True, True), (False, True), (False, True)]


def test_lists_of_their_own(variables):
    flags = resolve(variables, None, ["kernel$"])
    assert flags == [(True, False), (True, True), (True, True)]


def test_patterns_are_searched_as_regular_expressions(variables):
    assert resolve(variables, ["^dense/(k|b)"], [])[2] == (True, True)
    assert resolve(variables, ["^dense/(k|b)"], [])[0] == (False, True)


def test_variables_themselves(variables):
    flags = resolve(variables, [variables[1]], None)
    assert flags == [(True, True), (False, False), (True, True)]


def test_pattern_without_a_match_is_named(variables):
    with pytest.warns(UserWarning, match="'layer_norm' matches no variable"):
        resolve(variables, ["layer_norm", "bias"], None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve(variables, ["bias"], ["LayerNorm"])


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ("bias", "must be a list.*'bias'"),
        (b"bias", "must be a list"),
        (3, "must be a list"),
        ([3], "must hold.*3"),
        (["("], "not a regular expression"),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_bad_lists(entries, words, place):
    lists = [None, None]
    lists[place] = entries
    with pytest.raises(ValueError, match=f"`exclude_from_.*{words}"):
        Exclusions(*lists)


def test_config_keeps_none_and_empty_apart(variables):
    for lists in ((None, None), ([], None), (None, []), (["a"], ["b"])):
        config = Exclusions(*lists).get_config()
        assert tuple(config.values()) == lists
    config = Exclusions([variables[1]], None).get_config()
    again = Exclusions(*config.values())
    assert again.resolve(variables, id)[1] == (False, False)
    assert again.resolve(variables, id)[0] == (True, True)
