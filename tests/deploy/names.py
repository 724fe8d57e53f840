"""A DNS server with one name, as Docker's has one for the replicas of a service."""

import socket
import struct
import threading
from collections.abc import Sequence

_HEADER = struct.Struct(">6H")
_TYPE_A, _CLASS_IN, _TTL = 1, 1, 1


class NameServer:
    """Answers each query with `addresses`, which a test may replace at any time (RFC 1035)."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = list(addresses)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                question, client = self._socket.recvfrom(4096)
            except OSError:
                return
            self._socket.sendto(self._answer(question), client)

    def _answer(self, query: bytes) -> bytes:
        number = _HEADER.unpack_from(query)[0]
        end = query.index(b"\0", _HEADER.size) + 5
        question = query[_HEADER.size : end]
        addresses = self.addresses if struct.unpack(">H", question[-4:-2])[0] == _TYPE_A else []
        records = b"".join(
            b"\xc0\x0c" + struct.pack(">HHIH", _TYPE_A, _CLASS_IN, _TTL, 4) + socket.inet_aton(address)
            for address in addresses
        )
        return _HEADER.pack(number, 0x8180, 1, len(addresses), 0, 0) + question + records
