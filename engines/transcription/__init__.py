"""Speech to text, on mlx-audio. Driven by the work thread."""
