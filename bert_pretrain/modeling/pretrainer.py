"""tf-models' `BertPretrainerV2`, built from the recipe, and its losses."""

from typing import NamedTuple

import tensorflow as tf
import tf_keras
from official.modeling import tf_utils
from official.nlp.configs import encoders
from official.nlp.modeling import layers, models

from bert_pretrain import config as config_lib
from bert_pretrain.modeling import dropout
from bert_pretrain.modeling.mlm_loss import mlm_sums


class MaskedLMHead(layers.MaskedLM):
    """tf-models' head, with the part before the logits callable by itself."""

    def transform(
        self, sequence_output: tf.Tensor, positions: tf.Tensor
    ) -> tf.Tensor:
        """Returns what is multiplied by the embedding table.

        Args:
          sequence_output: [n, S, hidden].
          positions: int32 [n, P].

        Returns:
          float32 or lower [n * P, embedding width].
        """
        gathered = self._gather_indexes(sequence_output, positions)
        return self.layer_norm(self.dense(gathered))


def build_model(
    model_config: config_lib.Model, seed: int
) -> models.BertPretrainerV2:
    """Builds encoder, masked-LM head and next-sentence head.

    Args:
      model_config: The recipe's `task.model`.
      seed: Seeds the initial weights and the dropout.

    Returns:
      The built model; its checkpoints are those of tf-models' own.
    """
    tf_keras.utils.set_random_seed(seed)
    bert = config_lib.as_dict(model_config.encoder.bert)
    # `bert_v2` is the same network as `bert`, as a layer whose parts can be
    # reached; the functional `bert` hides its embedding dropout.
    encoder = encoders.build_encoder(
        encoders.EncoderConfig(type="bert_v2", bert_v2=bert)
    )
    encoder(encoder.inputs)  # Creates the table that the head shares.
    model = models.BertPretrainerV2(
        encoder_network=encoder,
        customized_masked_lm=MaskedLMHead(
            embedding_table=encoder.get_embedding_table(),
            activation=tf_utils.get_activation(model_config.mlm_activation),
            initializer=tf_keras.initializers.TruncatedNormal(
                stddev=model_config.mlm_initializer_range
            ),
            name="cls/predictions",
        ),
        classification_heads=[
            layers.ClassificationHead(
                inner_dim=bert["hidden_size"],
                num_classes=2,
                dropout_rate=bert["dropout_rate"],
                initializer=tf_keras.initializers.TruncatedNormal(
                    stddev=bert["initializer_range"]
                ),
                name="next_sentence",
            )
        ],
    )
    model(dict(model.inputs))
    dropout.replace_dropout(model, seed)
    return model


def pretraining_variables(
    model: models.BertPretrainerV2,
) -> list[tf.Variable]:
    """Returns the variables that pretraining moves.

    The encoder's own pooler is not among them: tf-models' next-sentence head
    brings its own, so that one has no gradient.
    """
    unused = {id(v) for v in model.encoder_network.pooler_layer.variables}
    return [v for v in model.trainable_variables if id(v) not in unused]


class Losses(NamedTuple):
    """Weighted sums of one micro-batch, float32 scalars."""

    mlm_loss: tf.Tensor
    mlm_accuracy: tf.Tensor
    nsp_loss: tf.Tensor
    nsp_accuracy: tf.Tensor


def losses(
    model: models.BertPretrainerV2,
    batch: dict[str, tf.Tensor],
    mlm_weights: tf.Tensor,
    nsp_weights: tf.Tensor,
    training: bool,
) -> Losses:
    """Sums the losses and hits of a batch, each with its weight.

    Divide the weights by the *global* counts beforehand and the sums over
    micro-batches and replicas are the means over the global batch, in value
    and in gradient.

    Args:
      model: From `build_model`.
      batch: Features of the input pipeline, [n, ...].
      mlm_weights: float32 [n, P], 0 for unused predictions.
      nsp_weights: float32 [n].
      training: Whether to drop values.

    Returns:
      The sums, `*_loss` differentiable.
    """
    sequence = model.encoder_network(batch, training=training)[
        "sequence_output"
    ]
    (head,) = model.classification_heads
    hidden = model.masked_lm.transform(sequence, batch["masked_lm_positions"])
    mlm = mlm_sums(
        tf.cast(hidden, tf.float32),
        tf.convert_to_tensor(model.encoder_network.get_embedding_table()),
        tf.convert_to_tensor(model.masked_lm.bias),
        tf.reshape(batch["masked_lm_ids"], [-1]),
        tf.reshape(mlm_weights, [-1]),
        tf.as_dtype(model.masked_lm.compute_dtype),
    )
    logits = tf.cast(head(sequence, training=training), tf.float32)
    labels = batch["next_sentence_labels"]
    nsp = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    hits = tf.cast(tf.argmax(logits, 1, tf.int32) == labels, tf.float32)
    return Losses(
        mlm.loss,
        mlm.hits,
        tf.reduce_sum(nsp * nsp_weights),
        tf.reduce_sum(hits * nsp_weights),
    )
