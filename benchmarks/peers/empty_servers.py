"""The least that a server does: answer any request with the same bytes.

`python -m benchmarks.peers.empty_servers fastapi|asgi PORT ANSWER`
"""

import json
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


def serve(kind: str, port: int, answer: str) -> None:
    """Answer everything with `answer`, JSON, on a port of 127.0.0.1 until the end."""
    app = _empty_fastapi(json.loads(answer)) if kind == "fastapi" else _empty_asgi(answer.encode())
    uvicorn.run(app, port=port, log_config=None, access_log=False, loop="uvloop", http="httptools")


def _empty_fastapi(answer: dict[str, Any]) -> Any:
    class Request(BaseModel):
        text: str

    class Answer(BaseModel):
        tokens: list[int]
        count: int
        fingerprint: str

    app = FastAPI()

    @app.post("/")
    async def encode(request: Request) -> Answer:  # noqa: ARG001 - read, as any route does
        return Answer(**answer)

    return app


def _empty_asgi(answer: bytes) -> Any:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (event := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{event['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return app


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
