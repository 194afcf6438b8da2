"""The lab: small MoE language models whose routers differ and whose rest is the same."""
