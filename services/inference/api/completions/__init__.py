"""POST /v1/completions and GET /v1/models: the API of OpenAI's clients and of the tools that speak to it."""

from services.inference.api.completions.routes import add_model_routes, completion_route

__all__ = ["add_model_routes", "completion_route"]
