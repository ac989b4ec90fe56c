"""What the commands do: refine, distil, fine-tune, evaluate, compare, export, build knowledge stores."""
