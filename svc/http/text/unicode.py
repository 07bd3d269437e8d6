"""Strings as JSON can carry them, made into strings that have a UTF-8 form."""


def well_formed(text: str) -> str:
    """`text` with split surrogate pairs joined and lone surrogates replaced by U+FFFD; well-formed text comes back as it is."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
