import pytest

from bert_pretrain.config import ConfigError
from bert_pretrain.training.model_dir import ModelDir

DATA = {"tokenizer": "a", "shards": {32: ["b"]}}


def _claim(path, recipe, data=DATA):
    folder = ModelDir(str(path))
    folder.claim(recipe, data)
    folder.release()


def _pretend_checkpoint(path):
    (path / "checkpoint").write_text("")


def test_a_folder_that_trained_nothing_takes_a_corrected_recipe(
    recipe, tmp_path
):
    _claim(tmp_path, recipe)
    recipe.trainer.seed = 5
    _claim(tmp_path, recipe)
    assert "seed: 5" in (tmp_path / "params.yaml").read_text()


def test_a_folder_with_a_checkpoint_keeps_its_recipe(recipe, tmp_path):
    _claim(tmp_path, recipe)
    _pretend_checkpoint(tmp_path)
    _claim(tmp_path, recipe)
    recipe.trainer.checkpoint_interval = 4  # Free to change.
    recipe.runtime.num_gpus = 1
    _claim(tmp_path, recipe)
    recipe.trainer.seed = 5
    recipe.runtime.mixed_precision_dtype = "bfloat16"
    with pytest.raises(ConfigError) as error:
        _claim(tmp_path, recipe)
    assert "trainer.seed: 0 there, 5 now" in str(error.value)
    assert "mixed_precision_dtype: 'float32' there" in str(error.value)
    assert "seed: 0" in (tmp_path / "params.yaml").read_text()


def test_other_data_is_refused(recipe, tmp_path):
    _claim(tmp_path, recipe)
    _pretend_checkpoint(tmp_path)
    with pytest.raises(ConfigError, match="other data"):
        _claim(tmp_path, recipe, {**DATA, "tokenizer": "c"})


def test_leftovers_of_a_checkpoint_cut_short_are_removed(recipe, tmp_path):
    partial = tmp_path / "ckpt-10_temp"
    partial.mkdir()
    (partial / "part-00000-of-00001").write_text("half")
    _claim(tmp_path, recipe)
    assert not partial.exists()


def test_one_process_at_a_time(recipe, tmp_path):
    first = ModelDir(str(tmp_path))
    first.claim(recipe, DATA)
    with pytest.raises(ConfigError, match="in use"):
        _claim(tmp_path, recipe)
    first.release()
    _claim(tmp_path, recipe)
