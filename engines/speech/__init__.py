"""The speech engine on mlx-audio.

An engine never downloads: the Hugging Face libraries read this variable when they are imported,
so it is set before any module of this package can import them.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
