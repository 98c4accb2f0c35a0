"""The paper's untuned recipes: from the batch alone to the rest.

Square-root scaling of the learning rate and a warm-up that is linear in
epochs, so that it is the same number of steps at every batch. Source:
You et al., arXiv:1904.00962v5, tables of section 4. No TensorFlow here.
"""

import dataclasses
import math
from fractions import Fraction

from lamb_tf import arguments


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What the tables say of one batch size.

    Attributes:
        batch_size: Examples per update.
        learning_rate: The rate the decay starts from.
        warmup_ratio: Share of `total_steps` that warms up.
        warmup_steps: Updates of the warm-up.
        total_steps: Updates in all.
        weight_decay: LAMB's decay rate.
        power: Exponent of the polynomial decay.
        beta_1: Decay rate of the first moment.
        beta_2: Decay rate of the second moment.
        epsilon: LAMB's epsilon.
    """

    batch_size: int
    learning_rate: float
    warmup_ratio: float
    warmup_steps: int
    total_steps: int
    weight_decay: float
    power: float = 1.0
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6


def square_root_rate(batch_size: int, peak: float, peak_batch: int) -> float:
    """Returns `peak * sqrt(batch_size / peak_batch)`."""
    return peak * math.sqrt(batch_size / peak_batch)


def bert(batch_size: int) -> Recipe:
    """Returns BERT-Large's recipe: 512 million sequences at any batch.

    Learning rate 5e-3 at 32768, warm-up over 1/5 of the steps there:
    3125 steps at every batch.

    Args:
        batch_size: Sequences per update, 1 to 163840.

    Returns:
        The `Recipe`.

    Raises:
        ValueError: If the batch is not in that range; above it the
            warm-up would be longer than the run.

    Example:
        >>> from lamb_tf import recipes
        >>> recipe = recipes.bert(batch_size=8192)
        >>> recipe.learning_rate, recipe.warmup_steps, recipe.total_steps
        (0.0025, 3125, 62500)

    References:
        arXiv:1904.00962v5, section 4, the table of BERT.
    """
    return _recipe(
        batch_size,
        peak=5e-3,
        peak_batch=32768,
        warmup_ratio=Fraction(1, 5),
        examples=15625 * 32768,
        weight_decay=0.01,
    )


def imagenet(batch_size: int) -> Recipe:
    """Returns ResNet-50's recipe: 90 epochs of ImageNet at any batch.

    Learning rate 4e-2 at 32768, warm-up over 20 of the 90 epochs there:
    782 steps at every batch. The weight decay is that of the authors'
    code at 32768.

    Args:
        batch_size: Images per update, 1 to 147456.

    Returns:
        The `Recipe`.

    Raises:
        ValueError: If the batch is not in that range.

    Example:
        >>> from lamb_tf import recipes
        >>> recipe = recipes.imagenet(batch_size=32768)
        >>> recipe.learning_rate, recipe.warmup_steps, recipe.total_steps
        (0.04, 782, 3519)

    References:
        arXiv:1904.00962v5, section 4, the table of ImageNet.
    """
    return _recipe(
        batch_size,
        peak=4e-2,
        peak_batch=32768,
        warmup_ratio=Fraction(20, 90),
        examples=90 * 1_281_167,
        weight_decay=1.5,
    )


def _recipe(batch_size, peak, peak_batch, warmup_ratio, examples, weight_decay):
    limit = int(peak_batch / warmup_ratio)
    batch_size = arguments.count("batch_size", batch_size, 1, limit)
    ratio = warmup_ratio * batch_size / peak_batch
    total_steps = -(-examples // batch_size)
    return Recipe(
        batch_size=batch_size,
        learning_rate=square_root_rate(batch_size, peak, peak_batch),
        warmup_ratio=float(ratio),
        warmup_steps=round(ratio * total_steps),
        total_steps=total_steps,
        weight_decay=weight_decay,
    )
