// Swagger UI, from the package fastapi-offline. A key entered under "Authorize" stays in this page's memory.
globalThis.SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  persistAuthorization: false,
  tryItOutEnabled: true,
  validatorUrl: null, // would ask another host
  // Below a proxy's path, the document's paths are below it too.
  requestInterceptor: (request) => {
    if (request.loadSpec) return request;
    const { pathname, search } = new URL(request.url);
    return Object.assign(request, { url: new URL(`.${pathname}${search}`, location).href });
  },
});
