"""Fine-tuning a T5 to write questions."""
