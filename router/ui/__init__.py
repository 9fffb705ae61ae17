"""The page at /ui: HTML, CSS and ES modules, served as they lie here (`router.gateway.routes.ui`). Nothing is built."""
