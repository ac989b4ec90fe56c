"""Questions from sentences by rules of English grammar, without a trained model."""
