"""The gateway process: protocols, registry, residency and supervision; it never imports MLX."""

__version__ = "0.1.0"
