"""The recipes as tf-models experiments: `--experiment=bert_lamb/pretrain`."""

from official.core import config_definitions as cfg
from official.core import exp_factory
from official.modeling import hyperparams

from bert_pretrain import config as config_lib


@exp_factory.register_config_factory("bert_lamb/pretrain")
def bert_lamb_pretrain() -> cfg.ExperimentConfig:
    """Mixed-batch BERT pretraining with LAMB (arXiv:1904.00962)."""
    defaults = config_lib.as_dict(config_lib.Config())
    experiment = cfg.ExperimentConfig()
    for name, section in defaults.items():
        setattr(experiment, name, hyperparams.Config(section))
    return experiment
