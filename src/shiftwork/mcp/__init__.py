"""The queue for agents that speak the Model Context Protocol: small tools, resources and prompts over its
operations.
"""
