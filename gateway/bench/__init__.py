"""`mlx-gateway bench serve`: measures a running server, by prompts of some lengths or by a workload
with checks. It is a client: it speaks HTTP to any OpenAI-compatible server and knows no model."""
