import pathlib

import pytest

from bert_pretrain import config as config_lib
from bert_pretrain.config import ConfigError

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
DEMO = str(CONFIGS / "demo_cpu.yaml")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=str)
def test_every_recipe_loads_and_round_trips(path, tmp_path):
    config = config_lib.load(str(path))
    again = tmp_path / "again.yaml"
    again.write_text(config_lib.to_yaml(config))
    assert config_lib.load(str(again)) == config
    # Each opens with its story and the command to copy.
    head = path.read_text().split("\ntask:")[0]
    assert f"--config_file=configs/{path.name}" in head


def test_the_papers_mixed_batch_has_the_papers_numbers():
    config = config_lib.load(str(CONFIGS / "bert_large_64k_32k.yaml"))
    first, second = config.trainer.phases
    assert (first.global_batch_size, first.train_steps) == (65536, 7037)
    assert (second.global_batch_size, second.train_steps) == (32768, 1562)
    assert (first.seq_length, second.seq_length) == (128, 512)
    assert config.trainer.optimizer.weight_decay == 0.01
    bert = config.task.model.encoder.bert
    assert (bert.hidden_size, bert.num_layers) == (1024, 24)


def test_the_papers_32k_row_has_the_papers_numbers():
    config = config_lib.load(str(CONFIGS / "bert_large_32k.yaml"))
    assert [p.train_steps for p in config.trainer.phases] == [14063, 1562]
    assert all(p.global_batch_size == 32768 for p in config.trainer.phases)
    # Section 4's table: 5e-3 at 32k, warm-up over 1/5 of the steps.
    assert config.trainer.phases[0].learning_rate == 5e-3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("trainer.stepz_per_loop=5", r"trainer.stepz_per_loop.*steps_per_loop"),
        ("trainer.phases.0.lerning_rate=1", r"phases\[0\].lerning_rate"),
        ("trainer.phases.7.train_steps=1", r"phases.7.*entries 0 to 1"),
        ("trainer.steps_per_loop=many", "expected int, got 'many'"),
        ("trainer.steps_per_loop=true", "expected int, got True"),
        ("runtime.distribution_strategy=pods", "not one of one_device"),
        ("task.model.encoder.bert.num_attention_heads=3", "not divisible"),
        ("trainer.phases=[]", "at least one phase"),
        ("trainer.phases.1.name=phase1", "stands twice"),
        ("trainer.phases.0.seq_length=1024", "max_position_embeddings 512"),
        ("trainer.phases.0.warmup_steps=-1", "warmup_steps must be"),
        ("trainer.checkpoint_interval=7", "multiple of steps_per_loop"),
        ("runtime.distribution_strategy=tpu", "--tpu=NAME"),
        ("task.data.masked_lm_prob=15", "must lie in"),
        ("task=5", "expected keys"),
        ("trainer.phases.0=5", r"phases.0: expected keys, got 5"),
        ("trainer.phases.-1.power=1", r"phases.-1: .*entries 0 to 1"),
        ("trainer.seed=[1", "value of trainer.seed, is not valid YAML"),
        ("trainer.seed=-1", "trainer.seed must lie in"),
        ("trainer.phases.0.power=0", r"phases\[0\].power must be"),
        ("trainer.phases.0.end_learning_rate=-1", "end_learning_rate must be"),
        ("trainer.phases.0.learning_rate=.inf", "finite and positive, got inf"),
        ("trainer.phases.0.micro_batch_size=0", "micro_batch_size must be"),
        ("trainer.optimizer.global_clipnorm=-1", "global_clipnorm must be"),
        ("task.model.encoder.bert.num_attention_heads=0", "heads must be"),
        ("task.model.encoder.bert.hidden_size=0", "hidden_size must be"),
        ("task.model.encoder.bert.initializer_range=-1", "range must be"),
        ("task.model.encoder.bert.dropout_rate=1", "must lie in"),
        ("runtime.num_gpus=-1", "runtime.num_gpus must be"),
        ("trainer", "mapping"),
    ],
)
def test_a_wrong_value_is_refused_by_name(overrides, message):
    with pytest.raises(ConfigError, match=message):
        config_lib.load(DEMO, overrides=overrides)


def test_overrides_reach_into_phases_and_keep_the_rest():
    config = config_lib.load(
        DEMO,
        overrides="trainer.phases[1].train_steps=99,trainer.optimizer."
        "exclude_from_layer_adaptation=[],trainer.optimizer.epsilon=1e-8",
    )
    assert config.trainer.phases[1].train_steps == 99
    assert config.trainer.phases[1].seq_length == 512
    assert config.trainer.optimizer.exclude_from_layer_adaptation == []
    assert config.trainer.optimizer.epsilon == 1e-8


def test_overrides_as_yaml():
    config = config_lib.load(DEMO, overrides="trainer: {seed: 5}")
    assert config.trainer.seed == 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"trainer: {seed: 1, seed: 2}", "'seed' stands twice"),
        (b"trainer: [", "not valid YAML"),
        (b"\xff\xfe", "no UTF-8|not valid YAML"),
        (b"- 1", "must be a mapping"),
        (b"? [a]\n: 1", "is no key"),
    ],
)
def test_a_file_that_is_no_recipe(tmp_path, content, message):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        config_lib.load(str(path))


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match="nowhere.yaml"):
        config_lib.load("nowhere.yaml")


def test_yaml_cannot_build_objects(tmp_path):
    path = tmp_path / "evil.yaml"
    path.write_text("trainer: !!python/object/apply:os.system [echo]")
    with pytest.raises(ConfigError):
        config_lib.load(str(path))
