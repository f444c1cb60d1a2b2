"""Agents that speak MCP, with the official SDK's own client."""
