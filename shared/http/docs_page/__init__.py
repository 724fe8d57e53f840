"""The page /docs: Swagger UI over the service's own OpenAPI document, without another host."""
