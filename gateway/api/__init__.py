"""Dialects and operating routes: each a few functions around the one exchange."""
