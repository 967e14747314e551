"""The field offsets of the code objects and strings that tests make, as in CPython 3.12."""

LAYOUT = {
    "header_bytes": 16,
    "code_line_table": 136,
    "code_filename": 112,
    "code_name": 128,
    "code_first_line": 68,
    "has_half_word": 0,
    "is_key_short": 0,
    "bytes_size": 16,
    "bytes_data": 32,
    "string_state": 32,
    "string_length": 16,
    "string_ascii_data": 40,
    "string_wide_data": 56,
    "string_state_shift": 2,
}
