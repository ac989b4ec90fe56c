"""Teachers by name, and their outputs: computed for each batch, or logits computed once and cached."""
