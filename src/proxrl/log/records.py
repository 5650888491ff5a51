"""The file format of TensorBoard's events: records with their lengths and checksums.

TensorBoard has a writer of its own, but importing it imports most of TensorBoard, which takes as long as a short run.
"""

import struct
from typing import IO


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def checksum(data: bytes) -> int:
    """Return the CRC-32C of the data, rotated and shifted as the format prescribes."""
    crc = 0xFFFFFFFF
    table = _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_record(file: IO[bytes], data: bytes) -> None:
    """Append a record: its length and the checksum of that, the data and its checksum, all little-endian."""
    length = struct.pack("<Q", len(data))
    file.write(b"".join((length, struct.pack("<I", checksum(length)), data, struct.pack("<I", checksum(data)))))
