"""Planning, building and checking knowledge stores."""
