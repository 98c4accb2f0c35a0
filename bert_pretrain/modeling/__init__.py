"""tf-models' BERT, with the loss and dropout that a large batch needs."""
