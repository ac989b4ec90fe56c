"""Questions written by a language model behind an OpenAI-compatible endpoint."""
