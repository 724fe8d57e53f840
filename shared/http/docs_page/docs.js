// Swagger UI, from the package fastapi-offline. A key entered under "Authorize" stays in this page's memory.
globalThis.SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  persistAuthorization: false,
  tryItOutEnabled: true,
  validatorUrl: null, // would ask another host
});
