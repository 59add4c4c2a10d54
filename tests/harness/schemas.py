"""Random JSON schemas of the keywords that answers can be held to, each with something valid."""

from __future__ import annotations

import random
from typing import Any

PATTERNS = ("^[a-z]{2,5}$", "[0-9]{3}", "^(ab|cd)+$", "^x-", "\\.$", '^[^"\\\\/]{1,6}$')
FORMATS = ("uuid", "ipv4", "email")

Schema = dict[str, Any]


class SchemaMaker:
    """Draws schemas that are at most `depth` deep. What they allow is short."""

    def __init__(self, seed: int, depth: int) -> None:
        self._draw = random.Random(seed)
        self._depth = depth

    def make(self) -> Schema:
        """A schema with definitions of its own, some of which it uses."""
        schema = self._any(self._depth, leaf=self._draw.random() < 0.2)
        return {"$defs": {"leaf": self._scalar(), "pair": self._array(1)}, **schema}

    def _any(self, depth: int, *, leaf: bool = False) -> Schema:
        if leaf or depth == 0:
            return self._scalar()
        kinds = (self._object, self._object, self._array, self._choice, self._reference)
        return self._draw.choice(kinds)(depth - 1)

    def _inner(self, depth: int) -> Schema:
        return self._any(depth, leaf=self._draw.random() < 0.5)

    def _scalar(self) -> Schema:
        kinds = (self._string, self._integer, self._number, self._listed, self._plain)
        return self._draw.choice(kinds)()

    def _plain(self) -> Schema:
        kind = self._draw.choice(["boolean", "null", ["boolean", "null"], ["integer", "null"]])
        return {"type": kind, "title": "plain", "description": "without limits"}

    def _string(self) -> Schema:
        how = self._draw.randrange(3)
        if how == 0:
            return {"type": "string", "pattern": self._draw.choice(PATTERNS), "maxLength": 20}
        if how == 1:
            return {"type": "string", "format": self._draw.choice(FORMATS)}
        least = self._draw.randrange(3)
        return {"type": "string", "minLength": least, "maxLength": least + self._draw.randrange(5)}

    def _integer(self) -> Schema:
        least = self._draw.randrange(-50, 50)
        schema: Schema = {"type": "integer", "minimum": least, "maximum": least + 40}
        if self._draw.random() < 0.3:
            schema["multipleOf"] = self._draw.choice([2, 5])
        return schema

    def _number(self) -> Schema:
        least = self._draw.randrange(-50, 50)
        return {"type": "number", "exclusiveMinimum": least, "exclusiveMaximum": least + 3.5}

    def _listed(self) -> Schema:
        values = self._draw.sample([1, "two", None, True, [3], {"four": 4}, 'quo"te', "é"], 3)
        return {"const": values[0]} if self._draw.random() < 0.3 else {"enum": values}

    def _object(self, depth: int) -> Schema:
        names = self._draw.sample(["a", "b c", "naïve", 'q"uote', "type", "uniqueItems"], 3)
        schema: Schema = {
            "type": "object",
            "properties": {name: self._inner(depth) for name in names},
            "required": names[: self._draw.randrange(4)],
            "additionalProperties": False,
        }
        if self._draw.random() < 0.2:
            schema["additionalProperties"] = {"type": "null"}
            schema |= {"required": names, "maxProperties": 4}
        return schema

    def _array(self, depth: int) -> Schema:
        if self._draw.random() < 0.3:
            return {
                "type": "array",
                "prefixItems": [self._inner(depth), self._inner(depth)],
                "items": False,
                "minItems": 1,
            }
        least = self._draw.randrange(3)
        return {"type": "array", "items": self._inner(depth), "minItems": least, "maxItems": 3}

    def _choice(self, depth: int) -> Schema:
        if self._draw.random() < 0.3:
            return {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]}
        return {"anyOf": [self._inner(depth), self._inner(depth)]}

    def _reference(self, depth: int) -> Schema:
        return {"$ref": self._draw.choice(["#/$defs/leaf", "#/$defs/pair"])}
