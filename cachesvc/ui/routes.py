"""All routes of the web page, for the application to include."""

from __future__ import annotations

from . import admin_routes, change_routes, explain_routes, login_routes, open_routes, read_routes

ROUTERS = (
    open_routes.router,
    login_routes.router,
    read_routes.router,
    explain_routes.router,
    admin_routes.router,
    change_routes.router,
    open_routes.fallback,
)
"""In the order in which a request searches for its route."""
