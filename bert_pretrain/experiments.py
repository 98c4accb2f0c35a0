"""The recipes as tf-models experiments: `--experiment=bert_lamb/pretrain`.

The optimizer types `lamb_tf` and `lars_tf` are registered as well, for any
experiment.
"""

from official.core import config_definitions as cfg
from official.core import exp_factory
from official.modeling import hyperparams

from bert_pretrain import config as config_lib
from bert_pretrain import optimizers as optimizers


@exp_factory.register_config_factory("bert_lamb/pretrain")
def bert_lamb_pretrain() -> cfg.ExperimentConfig:
    """Mixed-batch BERT pretraining with LAMB (arXiv:1904.00962)."""
    defaults = config_lib.as_dict(config_lib.Config())
    experiment = cfg.ExperimentConfig()
    for name, section in defaults.items():
        setattr(experiment, name, hyperparams.Config(section))
    return experiment
