"""A multipart form, parsed as it comes in: small fields are kept, one file is handed on.

Pure: `feed` takes bytes in and `take` gives what has come of the file since the last time, so no
more of it is held here than was fed at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.errors import InvalidRequest

MAX_PARTS = 64
MAX_FIELD_BYTES = 64 * 2**10

FILE = "file"
"""The part that is the file, whether or not it has a file name."""


class FormParser:
    """Raises `InvalidRequest` for a form that is malformed, too rich, or has two files.

    `fields` are the values of each field in the order of their parts. Other files than the one are
    passed over.
    """

    def __init__(self, boundary: bytes) -> None:
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._on_part,
                    "on_header_field": self._on_header_name,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers,
                    "on_part_data": self._on_data,
                    "on_part_end": self._on_part_end,
                    "on_end": self._on_end,
                },
            )
        except FormParserError as error:
            raise _malformed(error) from None
        self.fields: dict[str, list[str]] = {}
        self.has_file = False
        self._over = False
        self._parts = 0
        self._header = b"", b""
        self._headers: dict[bytes, bytes] = {}
        self._name: str | None = None
        self._value = bytearray()
        self._file: list[bytes] = []
        self._file_bytes = 0

    def feed(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _malformed(error) from None

    def finish(self) -> None:
        """To be called after the last byte."""
        if not self._over:
            raise InvalidRequest("the form ends before its last boundary: the body was cut off")

    @property
    def pending(self) -> int:
        """Bytes of the file that `take` would give."""
        return self._file_bytes

    def take(self) -> bytes:
        data = b"".join(self._file)
        self._file.clear()
        self._file_bytes = 0
        return data

    # --- what the parser finds ------------------------------------------------------------------

    def _on_part(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise InvalidRequest(f"the form has more than {MAX_PARTS} parts")
        self._header, self._headers, self._name = (b"", b""), {}, None
        self._value.clear()

    def _on_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header = self._header[0] + data[start:end], b""

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header = self._header[0], self._header[1] + data[start:end]

    def _on_header_end(self) -> None:
        name, value = self._header
        self._headers[name.lower()] = value
        self._header = b"", b""

    def _on_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        name = options.get(b"name")
        if name is None:
            raise InvalidRequest("a part of the form has no name")
        self._name = _text(name, "a name in the form")
        if self._name == FILE:
            if self.has_file:
                raise InvalidRequest(f"{FILE}: there is more than one", param=FILE)
            self.has_file = True
        elif b"filename" in options:
            self._name = None

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._name == FILE:
            self._file.append(data[start:end])
            self._file_bytes += end - start
        elif self._name is not None:
            self._value += data[start:end]
            if len(self._value) > MAX_FIELD_BYTES:
                name = self._name[:100]
                raise InvalidRequest(
                    f"{name}: longer than {MAX_FIELD_BYTES // 2**10} KiB", param=name
                )

    def _on_part_end(self) -> None:
        if self._name is not None and self._name != FILE:
            value = _text(bytes(self._value), self._name[:100])
            self.fields.setdefault(self._name, []).append(value)

    def _on_end(self) -> None:
        self._over = True


def boundary_of(content_type: str | None) -> bytes:
    """Raises `InvalidRequest` for what is no multipart form."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise InvalidRequest(
            "the body has to be a form with a file: multipart/form-data with a boundary "
            "(curl: -F file=@speech.mp3 -F model=NAME)"
        )
    return boundary


def single_values(fields: Mapping[str, list[str]], lists: frozenset[str]) -> dict[str, object]:
    """Fields as JSON would have them: those in `lists` as lists, with or without `[]` behind their
    names. Empty ones are not given. Raises `InvalidRequest` for any other that comes twice."""
    values: dict[str, object] = {}
    for name, given in fields.items():
        plain = name.removesuffix("[]")
        if plain in lists:
            known = values.setdefault(plain, [])
            assert isinstance(known, list)
            known += filter(None, given)
        elif len(given) > 1:
            raise InvalidRequest(f"{name[:100]}: there is more than one", param=name[:100])
        elif given[0]:
            values[name] = given[0]
    return values


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{what} is not valid UTF-8") from None


def _malformed(error: Exception) -> InvalidRequest:
    return InvalidRequest(f"the form is malformed: {error}")
