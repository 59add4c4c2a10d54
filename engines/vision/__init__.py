"""Images, video and audio in chat, on mlx-vlm. Driven by the work thread."""
