"""What the embedding and the rerank engine share. Driven by the work thread, like every engine."""
