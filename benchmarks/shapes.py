"""The parameter lists that the optimizers are timed on.

Computed from the architectures, so that no model need be built;
`tests/benchmarks/test_shapes.py` holds them against the real ones.
"""

import math
from collections.abc import Callable

Shapes = list[tuple[int, ...]]


def bert(hidden: int, layers: int, vocabulary: int = 30522) -> Shapes:
    """Returns the shapes of BERT with both pre-training heads.

    As the paper counts it: two segments, a next-sentence head on the
    first token, kernels as matrices.

    Args:
        hidden: Width; the inner width is four times as much.
        layers: Transformer layers.
        vocabulary: WordPieces.
    """
    norm = [(hidden,), (hidden,)]
    square = [(hidden, hidden), (hidden,)]
    layer = 4 * square + norm
    layer += [(hidden, 4 * hidden), (4 * hidden,)]
    layer += [(4 * hidden, hidden), (hidden,)] + norm
    embeddings = [(vocabulary, hidden), (512, hidden), (2, hidden)] + norm
    heads = square + norm + [(vocabulary,)] + [(hidden, 2), (2,)]
    return embeddings + layers * layer + heads


def resnet50(classes: int = 1000) -> Shapes:
    """Returns the trainable shapes of Keras's ResNet-50.

    Its convolutions have biases, although a batch norm follows each:
    214 variables, where ResNets without those have 161.
    """

    def convolution(kernel, inputs, outputs):
        return [(kernel, kernel, inputs, outputs)] + 3 * [(outputs,)]

    shapes, inputs = convolution(7, 3, 64), 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            if block == 0:
                shapes += convolution(1, inputs, 4 * width)
            shapes += convolution(1, inputs, width)
            shapes += convolution(3, width, width)
            shapes += convolution(1, width, 4 * width)
            inputs = 4 * width
    return shapes + [(inputs, classes), (classes,)]


MODELS: dict[str, Callable[[], Shapes]] = {
    "bert_base": lambda: bert(768, 12),
    "bert_large": lambda: bert(1024, 24),
    "resnet50": resnet50,
}


def parameters(shapes: Shapes) -> int:
    """Returns the number of elements in all shapes together."""
    return sum(map(math.prod, shapes))
