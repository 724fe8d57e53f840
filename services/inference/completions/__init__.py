"""POST /v1/completions and GET /v1/models: the API of OpenAI's clients and of the tools that speak to it."""

from services.inference.completions.routes import add_completion_routes

__all__ = ["add_completion_routes"]
