"""What end-to-end tests and benchmarks share: a real daemon, and clients that misbehave."""
