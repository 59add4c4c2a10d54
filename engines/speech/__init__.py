"""Text to speech, on mlx-audio. Driven by the work thread."""
