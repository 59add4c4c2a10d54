"""Formats of traces, one family a file, in the order in which `auto` tries their hints."""

from engines.parsers.reasoning import (
    auto,
    deepseek_r1,
    gemma4,
    glm4,
    harmony,
    minimax_m2,
    mistral,
    poolside_v1,
    qwen3,
    step3p5,
    think,
)

FORMATS = (
    harmony.FORMAT,
    gemma4.FORMAT,
    mistral.FORMAT,
    minimax_m2.FORMAT,
    glm4.FORMAT,
    deepseek_r1.FORMAT,
    think.FORMAT,
    qwen3.FORMAT,
    poolside_v1.FORMAT,
    step3p5.FORMAT,
    auto.FORMAT,
)
