"""Speech to text on mlx-audio."""
